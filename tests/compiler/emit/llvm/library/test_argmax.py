"""Machine code of argmax, against PyTorch."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array

from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.kernels.outputs import Argmax

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")

VALUES = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, -np.inf, -2.5, 2.5]


def places_of(x):
    """Indices that the machine code of argmax finds along the last axis."""
    kernel = Argmax("layer", array("x", *x.shape), array("out", *x.shape[:-1], dtype="int64"), -1)
    found = LibraryCase(kernel, {"x": x}).in_all_ways()["out"]
    return found.reshape(x.shape[:-1])


@pytest.mark.parametrize("shape", [(13, 10), (3, 5, 50), (7, 16), (9, 1), (2, 64), (70,)], ids=str)
@pytest.mark.parametrize("values", [VALUES, [*VALUES, np.inf], [*VALUES, np.nan], [-np.inf]])
def test_the_first_of_the_largest_numbers(shape, values):
    x = np.random.default_rng(3).choice(np.float32(values), shape)
    np.testing.assert_array_equal(places_of(x), torch.from_numpy(x).argmax(-1))


def test_other_axes_and_types_are_left_to_numpy():
    x, out = array("x", 4, 5), array("out", 5, dtype="int64")
    assert library_code(Argmax("layer", x, out, 0), "kernel") is None
    half = array("x", 5, 4, dtype="float64")
    assert library_code(Argmax("layer", half, out, 1), "kernel") is None
