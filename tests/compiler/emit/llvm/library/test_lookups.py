"""Machine code of gather and index_select, against PyTorch."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.kernels import bound
from support.library_code import LibraryCase, array, normal

from csrun.base.errors import CsrunError
from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.indexing import Indexing

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")

#: Shape of what is looked up in, axis, positions.
SIZES = [
    ((7,), 0, 5),
    ((1, 1), 1, 1),
    ((9, 33), 0, 40),
    ((600, 3), 0, 50),
    ((5, 6), 1, 17),
    ((4, 3, 21), 1, 8),
    ((3, 7, 2), 2, 5),
]


def indexing(function, x, indices, out, dim):
    """Kernel of a forward or a backward pass."""
    phase = Phase.BACKWARD if function.endswith("backward") else Phase.FORWARD
    return Indexing("lookup", function, x, indices, out, dim, None, phase)


def indices_of(shape, count, dtype):
    """Indices of which some repeat and some never occur."""
    random = np.random.default_rng(shape)
    found = random.integers(0, count, shape)
    return np.where(random.random(shape) < 0.3, count - 1, found).astype(dtype)


@pytest.mark.parametrize("function", ["gather", "index_select"])
@pytest.mark.parametrize(("shape", "dim", "count"), SIZES, ids=str)
def test_lookups_and_their_gradients(function, shape, dim, count):
    sizes = (*shape[:dim], count, *shape[dim + 1 :])
    own = sizes if function == "gather" else (count,)
    indices = indices_of(own, shape[dim], "int32" if dim else "int64")
    x, grad = normal(*shape), normal(*sizes, seed=1)
    leaf = torch.from_numpy(x).requires_grad_()
    wanted = getattr(torch, function)(leaf, dim, torch.from_numpy(indices.astype("int64")))
    wanted.backward(torch.from_numpy(grad))
    arrays = array("x", *shape), array("i", *own, dtype=str(indices.dtype)), array("out", *sizes)
    case = LibraryCase(indexing(function, *arrays, dim), {"x": x, "i": indices})
    found = case.in_all_ways()["out"].reshape(sizes)
    np.testing.assert_array_equal(found, wanted.detach())
    arrays = array("g", *sizes), arrays[1], array("dx", *shape)
    kernel = indexing(f"{function}_backward", *arrays, dim)
    found = LibraryCase(kernel, {"g": grad, "i": indices}).in_all_ways()["dx"]
    np.testing.assert_allclose(found.reshape(shape), leaf.grad, rtol=1e-6, atol=1e-6)


def test_sums_have_the_order_of_numpys():
    grad, indices = normal(3, 200, 18), indices_of((3, 200, 18), 4, "int64")
    wanted, mesh = np.zeros((3, 4, 18), "float32"), np.ogrid[:3, :200, :18]
    np.add.at(wanted, (mesh[0], indices, mesh[2]), grad)
    arrays = array("g", 3, 200, 18), array("i", 3, 200, 18, dtype="int64"), array("dx", 3, 4, 18)
    kernel = indexing("gather_backward", *arrays, 1)
    found = LibraryCase(kernel, {"g": grad, "i": indices}).in_all_ways()["dx"]
    np.testing.assert_array_equal(found, wanted)


def test_indices_of_a_part_and_arrays_in_another_order():
    """Fewer index rows than value rows, a transposed gradient, integers and booleans."""
    x, indices = normal(6, 5), indices_of((4, 3), 5, "int64")
    arrays = array("x", 6, 5), array("i", 4, 3, dtype="int64"), array("out", 4, 3)
    found = LibraryCase(indexing("gather", *arrays, 1), {"x": x[:4], "i": indices}).in_all_ways()
    np.testing.assert_array_equal(found["out"][..., 0], np.take_along_axis(x[:4], indices, 1))
    grad, rows = normal(9, 40), indices_of(40, 11, "int64")
    transposed = array("g", 9, 40).permuted((1, 0))
    kernel = indexing(
        "index_select_backward", transposed, array("i", 40, dtype="int64"), array("dx", 11, 9), 0
    )
    wanted = np.zeros((11, 9), "float32")
    np.add.at(wanted, rows, grad.T)
    found = LibraryCase(kernel, {"g": grad.T, "i": rows}).in_all_ways()["dx"]
    np.testing.assert_array_equal(found[0], wanted)
    for dtype in ("bool", "int64", "float64"):
        numbers = (normal(6, 5) * 3).astype(dtype)
        arrays = array("x", 6, 5, dtype=dtype), array("i", 40, dtype="int64")
        kernel = indexing("index_select", *arrays, array("out", 6, 40, dtype=dtype), 1)
        places = rows % 5
        found = LibraryCase(kernel, {"x": numbers, "i": places}).in_all_ways()["out"]
        np.testing.assert_array_equal(found[..., 0], numbers[:, places])


def test_a_lookup_that_is_no_view_of_three_axes_has_no_machine_code():
    x = array("x", 4, 3, 5).permuted((2, 1, 0))
    arrays = x, array("i", 7, dtype="int64"), array("out", 5, 3, 7)
    assert library_code(indexing("index_select", *arrays, 2), "kernel") is None
    arrays = array("g", 4, 3), array("i", 4, 3, dtype="int64"), array("dx", 6, 5)
    assert library_code(indexing("gather_backward", *arrays, 1), "kernel") is None


def test_an_index_out_of_range_is_an_error_in_both_forms():
    x, indices = normal(6, 5), indices_of((6, 3), 5, "int64")
    arrays = array("x", 6, 5), array("i", 6, 3, dtype="int64"), array("out", 6, 3)
    kernel = Indexing("last", "gather", *arrays, 1, 5, Phase.FORWARD)
    for form in ("numpy", "llvm"):
        given = {"x": x, "i": indices.copy()}
        run, found = bound([kernel], given, form)
        run()
        np.testing.assert_array_equal(found["out"], np.take_along_axis(x, indices, 1))
        given["i"][3, 2] = 5
        with pytest.raises(CsrunError, match="layer last: computed index 5 is out of range"):
            run()
