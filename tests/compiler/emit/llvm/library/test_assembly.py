"""Machine code of concatenation and of slice gradients, against NumPy."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array, normal

from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.concatenation import Assembly, Piece


def assembly(out, *pieces, is_whole=True):
    return Assembly("parts", tuple(Piece(*p) for p in pieces), out, is_whole, Phase.FORWARD)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "sizes",
    [((1, 1, 1), 1), ((3, 17, 5), 2), ((1, 2, 300), 7), ((70, 3, 9), 4), ((5, 64, 16), 16)],
    ids=str,
)
def test_a_concatenation_along_each_axis(sizes, dim):
    shape, count = sizes
    second = (*shape[:dim], count, *shape[dim + 1 :])
    whole = (*shape[:dim], shape[dim] + count, *shape[dim + 1 :])
    out, x, y = array("out", *whole), array("x", *shape), array("y", *second)
    values = {"x": normal(*shape), "y": normal(*second, seed=1)}
    pieces = [(x, out.sliced(dim, 0, shape[dim])), (y, out.sliced(dim, shape[dim], whole[dim]))]
    for number in (0, 1):  # of several arrays over one memory the last one is seen
        case = LibraryCase(assembly(out, pieces[1 - number], pieces[number]), values)
        np.testing.assert_array_equal(case.in_all_ways()["out"], values["xy"[number]])


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "float64"])
def test_the_gradient_of_a_slice_is_zero_elsewhere(dtype):
    x = (normal(4, 3, 30) * 3).astype(dtype)
    out = array("out", 4, 9, 30, dtype=dtype)
    kernel = assembly(
        out, (array("x", 4, 3, 30, dtype=dtype), out.sliced(1, 2, 8, 2)), is_whole=False
    )
    found = LibraryCase(kernel, {"x": x}).in_all_ways()["out"]
    wanted = np.zeros((4, 9, 30), dtype)
    wanted[:, 2:8:2] = x
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_gradient_of_one_position(dim):
    shape = (5, 3, 70)
    out, row = array("out", *shape), (*shape[:dim], *shape[dim + 1 :])
    x = normal(*row)
    kernel = assembly(out, (array("x", *row), out.selected(dim, 2)), is_whole=False)
    wanted = np.zeros(shape, "float32")
    np.moveaxis(wanted, dim, 0)[2] = x
    found = LibraryCase(kernel, {"x": x}).in_all_ways()["out"]
    np.testing.assert_array_equal(found, wanted)


def test_threads_share_a_part_of_any_size():
    """Each part is one axis of odd size."""
    out, x, y = array("out", 514, 1023), array("x", 257, 1023), array("y", 257, 1023)
    values = {"x": normal(257, 1023), "y": normal(257, 1023, seed=1)}
    case = LibraryCase(
        assembly(out, (x, out.sliced(0, 0, 257)), (y, out.sliced(0, 257, 514))), values
    )
    assert case.rows == 2 * 64
    assert "masked.store" not in case.code.text, "which some CPUs take long for"
    np.testing.assert_array_equal(case.in_all_ways()["out"], values["y"])
    out, x = array("out", 10001), array("x", 5000)
    kernel = assembly(out, (x, out.sliced(0, 0, 10000, 2)), is_whole=False)
    case = LibraryCase(kernel, {"x": normal(5000)})
    assert case.rows > 1
    np.testing.assert_array_equal(case.in_all_ways()["out"][:10000:2], normal(5000))


def test_parts_in_another_order_and_of_one_number():
    x, out = array("x", 30, 4), array("out", 4, 60)
    kernel = assembly(out, (x.permuted((1, 0)), out.sliced(1, 30, 60)), is_whole=False)
    value = normal(30, 4)
    found = LibraryCase(kernel, {"x": value.T}).in_all_ways()["out"]
    np.testing.assert_array_equal(found[:, 30:], value.T)
    assert not found[:, :30].any()
    out, row = array("out", 20, 40), array("x", 1, 40).expanded((20, 40))
    kernel = assembly(out, (row, out))
    found = LibraryCase(kernel, {"x": np.broadcast_to(normal(1, 40), (20, 40))}).in_all_ways()
    np.testing.assert_array_equal(found["out"], np.broadcast_to(normal(1, 40), (20, 40)))


def test_parts_that_are_empty_of_other_types_or_of_the_same_memory_have_no_machine_code():
    out = array("out", 4, 8)
    half = out.sliced(1, 0, 4)
    assert library_code(assembly(out, (array("x", 4, 4, dtype="float64"), half)), "kernel") is None
    assert library_code(assembly(out, (out.sliced(1, 4, 8), half)), "kernel") is None
    assert library_code(assembly(out, (array("x", 0, 8), out.sliced(0, 0, 0))), "kernel") is None
    strided = array("out", 8, 4).permuted((1, 0))
    piece = array("x", 4, 4), strided.sliced(1, 0, 4)
    assert library_code(assembly(strided, piece, is_whole=False), "kernel") is None
