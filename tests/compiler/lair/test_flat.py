"""Formulas over flat arrays as loops, against the same formulas in NumPy."""

import numpy as np
import pytest

from csrun.compiler.lair import dialect, flat
from csrun.compiler.lair.flat import flat_loop
from csrun.executable import row_tiles

ARRAYS = ("w", "g", "m")


def formula(old):
    """Formula in whose order an array, a tile and the first operand are each overwritten."""
    m = old["m"] * 0.5 + old["g"]
    u = (m * m + 2.0).root().at_least("floor") / old["g"]
    return {"m": m, "w": old["w"] * 3.0 - u}


def expected(w, g, m, floor):
    m = m * 0.5 + g
    return w * 3 - np.maximum(np.sqrt(m * m + 2), floor) / g, g, m


def run(arrays, **numbers):
    """Call the loop of a program on arrays of these names."""
    function = flat_loop("test", dict.fromkeys(ARRAYS, "float32"), formula).function
    scope = {**vars(np), "np": np, "row_tiles": row_tiles}
    exec("\n".join(function.lines()), scope)
    name = lambda array: array.name.rpartition("/")[2]  # noqa: E731
    places = dict(zip(ARRAYS, arrays, strict=True))
    tile = np.full(flat.TILE_ELEMENTS, np.nan)
    bound = [places.get(name(a), tile) for a in function.parameters]
    scope[function.name](*bound)(**numbers)


@pytest.mark.parametrize("elements", [0, 1, 7, 8, 20])
def test_a_formula_over_tiles_is_numpys(monkeypatch, elements):
    monkeypatch.setattr(flat, "TILE_ELEMENTS", 8)
    arrays = np.random.default_rng(0).standard_normal((3, elements))
    wanted = expected(*arrays, 1.6)
    run(arrays, floor=1.6)
    np.testing.assert_allclose(arrays, wanted, rtol=1e-14)


def test_what_is_taken_over_is_written_in_place_and_one_tile_holds_the_rest():
    loop = flat_loop("test", dict.fromkeys(ARRAYS, "float32"), formula)
    assert [array.name for array in loop.text.own] == ["test/tile_0"]


def test_an_array_that_is_read_after_its_next_value_is_refused():
    def late(old):
        m = old["m"] * 0.5
        return {"m": m, "w": old["w"] - old["m"]}

    with pytest.raises(AssertionError, match="m is read after its next value was assigned"):
        flat_loop("test", dict.fromkeys(ARRAYS, "float32"), late)


def test_arrays_that_no_formula_reads_are_not_read():
    loop = flat_loop(
        "test", dict.fromkeys(ARRAYS, "float32"), lambda old: {"w": old["w"] + old["g"]}
    )
    reads = [op.array.name for op in loop.op.body.block.ops if isinstance(op, dialect.ReadOp)]
    assert reads == ["w", "g"]


def test_the_kernel_is_read_back_from_its_text():
    kernel = flat_loop("test", dict.fromkeys(ARRAYS, "float32"), formula).op
    text = dialect.print_kernels([kernel])
    assert dialect.print_kernels(dialect.parse_kernels(text)) == text
