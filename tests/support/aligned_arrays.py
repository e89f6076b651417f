"""Arrays aligned to a cache line, as in a program."""

import numpy as np

from csrun.executable.arrays import nbytes_of, view, zeros


def zeros_of(*shape, dtype="float32"):
    return view(zeros(nbytes_of(shape, dtype)), 0, shape, dtype)


def normal(*shape):
    """Normally distributed float32 numbers, the same ones for each shape."""
    array = zeros_of(*shape)
    array[...] = np.random.default_rng(sum(shape)).standard_normal(shape)
    return array
