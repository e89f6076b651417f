"""Arrays that start on a cache line, as those of a program do."""

import numpy as np

from csrun.executable.arrays import nbytes_of, view, zeros


def zeros_of(*shape, dtype="float32"):
    return view(zeros(nbytes_of(shape, dtype)), 0, shape, dtype)


def normal(*shape):
    """Normally distributed numbers, float32, the same ones for a shape."""
    array = zeros_of(*shape)
    array[...] = np.random.default_rng(sum(shape)).standard_normal(shape)
    return array
