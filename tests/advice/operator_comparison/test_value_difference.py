"""Differences in units in the last place, against NumPy's nextafter."""

import numpy as np
import pytest

from csrun.advice.operator_comparison.value_difference import (
    NOT_A_NUMBER,
    ComparedArray,
    Tolerance,
    difference_of,
)
from csrun.base.half_formats import HalfFormat

BFLOAT16 = HalfFormat("bfloat16", 7, 127)


def moved(x: np.ndarray, steps: int) -> np.ndarray:
    """Numbers moved up by this many neighbours."""
    for _ in range(steps):
        x = np.nextafter(x, np.array(np.inf, x.dtype))
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_neighbours_are_one_unit_apart(dtype: str, steps: int) -> None:
    x = np.array([[1.0, -3.5], [1e-30, 2.0]], dtype)
    y = x.copy()
    y[0, 1] = moved(x, steps)[0, 1]
    found = difference_of(ComparedArray(x), ComparedArray(y))
    assert found is not None
    assert (found.elements, found.differing, found.largest_ulp) == (4, 1, steps)
    assert (found.place, found.first, found.second) == ((0, 1), x[0, 1], y[0, 1])
    assert found.largest == abs(float(x[0, 1]) - float(y[0, 1]))
    counts = {(each.first, each.last): each.count for each in found.histogram}
    assert counts == {(0, 0): 3, (1, 1) if steps == 1 else (2, 3) if steps == 2 else (4, 7): 1}
    assert difference_of(ComparedArray(x), ComparedArray(y), Tolerance(steps)) is None


def test_numbers_on_both_sides_of_zero() -> None:
    tiny = np.float32(np.finfo(np.float32).smallest_subnormal)
    found = difference_of(ComparedArray(np.array([tiny])), ComparedArray(np.array([-tiny])))
    assert found is not None
    assert found.largest_ulp == 3  # tiny, 0, -0, -tiny


def test_a_number_and_none() -> None:
    x, nan = np.array([1.0], np.float32), np.array([np.nan], np.float32)
    assert difference_of(ComparedArray(nan), ComparedArray(nan)) is None
    found = difference_of(ComparedArray(x), ComparedArray(nan))
    assert found is not None
    assert found.largest_ulp == NOT_A_NUMBER


def test_words_are_compared_in_units_of_their_format() -> None:
    x = np.array([1.0, 100.0, -0.3], np.float32)
    words = np.empty(3, np.uint16)
    BFLOAT16.narrow(x, words)
    assert difference_of(ComparedArray(x), ComparedArray(words, BFLOAT16)) is None
    words[1] += 2
    found = difference_of(ComparedArray(x), ComparedArray(words, BFLOAT16))
    assert found is not None
    assert (found.place, found.largest_ulp, found.second) == ((1,), 2, 101.0)


def test_units_of_the_largest_element() -> None:
    x = np.array([1.5, 1e-6], np.float32)
    y = x + np.array([0, 1e-9], np.float32)
    assert difference_of(ComparedArray(x), ComparedArray(y), Tolerance(100)) is not None
    assert difference_of(ComparedArray(x), ComparedArray(y), Tolerance(1, of_largest=True)) is None
    y[1] += 3 * np.finfo(np.float32).eps
    found = difference_of(ComparedArray(x), ComparedArray(y), Tolerance(1, of_largest=True))
    assert found is not None
    assert found.largest_ulp in (3, 4)


def test_whole_numbers() -> None:
    x, y = np.array([3, -5]), np.array([3, 7])
    found = difference_of(ComparedArray(x), ComparedArray(y))
    assert found is not None
    assert (found.differing, found.largest_ulp) == (1, 12)
