"""Difference of two arrays in units in the last place (ulp) of the coarser of their types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from csrun.base.half_formats import WORD, HalfFormat
from csrun.base.half_ranges import widened

AnyArray = npt.NDArray[Any]
NOT_A_NUMBER = 2**63  # ulp between a number and NaN
_MOST = 2.0**62  # ulp of the largest element that are counted


class HistogramBin(msgspec.Struct, frozen=True):
    """Number of elements whose difference is `first` to `last` ulp."""

    first: int
    last: int
    count: int


class ValueDifference(msgspec.Struct, frozen=True):
    """Elements that differ by more than a tolerance, and the largest difference.

    place: of the element with the largest difference in ulp. first, second: both values there.
    largest: difference of two elements in absolute terms, of those that are numbers.
    """

    elements: int
    differing: int
    largest_ulp: int
    place: tuple[int, ...]
    first: float
    second: float
    largest: float
    histogram: tuple[HistogramBin, ...]


@dataclass(frozen=True)
class ComparedArray:
    """An array; half: the format of its elements, if they are words of one."""

    array: AnyArray
    half: HalfFormat | None = None

    @property
    def numbers(self) -> AnyArray:
        """Elements as numbers."""
        return self.array if self.half is None else widened(self.array, self.half)

    def in_precision(self, dtype: str) -> "ComparedArray":
        """The same without digits that this floating-point type does not have."""
        is_wide = self.array.dtype.kind == "f" and self.array.itemsize > np.dtype(dtype).itemsize
        return ComparedArray(self.array.astype(dtype)) if is_wide else self

    def words(self, half: HalfFormat) -> AnyArray:
        """Elements as words of a format."""
        if self.half == half:
            return self.array
        found = np.empty(self.array.shape, WORD)
        half.narrow(self.numbers, found)
        return found


@dataclass(frozen=True)
class Tolerance:
    """Tolerated difference, in ulp of each element or of the largest element."""

    ulp: int = 0
    of_largest: bool = False


EXACT = Tolerance()


def difference_of(
    first: ComparedArray,
    second: ComparedArray,
    tolerance: Tolerance = EXACT,
    halves: Sequence[HalfFormat] = (),
) -> ValueDifference | None:
    """Compare two arrays of one shape; None where no element differs by more than the tolerance.

    halves: formats in which one of the runs stores its values, whatever these two are
    """
    if halves and first.numbers.dtype.kind == "f" and second.numbers.dtype.kind == "f":
        half = min(halves, key=lambda each: each.mantissa_bits)
        first, second = (ComparedArray(each.words(half), half) for each in (first, second))
    distance = _distance(first, second, tolerance.of_largest)
    differing = int(np.count_nonzero(distance > tolerance.ulp))
    if not differing:
        return None
    place = np.unravel_index(int(distance.argmax()), distance.shape)
    a, b = first.numbers, second.numbers
    absolute = _absolute(a, b)
    largest = np.max(absolute, initial=0.0, where=np.isfinite(absolute))
    return ValueDifference(
        elements=distance.size,
        differing=differing,
        largest_ulp=int(distance[place]),
        place=tuple(map(int, place)),
        first=float(a[place]),
        second=float(b[place]),
        largest=float(largest),
        histogram=_histogram(distance),
    )


def _distance(first: ComparedArray, second: ComparedArray, of_largest: bool) -> AnyArray:
    """Ulp between elements, uint64."""
    halves = [each.half for each in (first, second) if each.half is not None]
    x, y = first.numbers, second.numbers
    if halves:
        half = min(halves, key=lambda each: each.mantissa_bits)
        a, b = (_ordered(each.words(half)) for each in (first, second))
    else:
        x, y = _same_type(x, y)
        if x.dtype.kind != "f":
            return np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
        a, b = (_ordered(each.view(f"u{each.itemsize}")) for each in (x, y))
    distance = np.asarray(np.maximum(a, b) - np.minimum(a, b))  # of a scalar, too
    if of_largest:
        epsilon = halves[0].epsilon if halves else float(np.finfo(x.dtype).eps)
        distance = np.where(distance > 0, _in_ulp_of_largest(x, y, epsilon), distance)
    distance[np.isnan(x) ^ np.isnan(y)] = NOT_A_NUMBER
    distance[np.isnan(x) & np.isnan(y)] = 0
    return distance


def _in_ulp_of_largest(x: AnyArray, y: AnyArray, epsilon: float) -> AnyArray:
    """Differences over the ulp of the largest finite element, rounded up; uint64."""
    sizes = np.abs(np.stack([x, y]).astype(np.float64))
    largest = np.max(sizes, initial=0.0, where=np.isfinite(sizes))
    ulp = 2.0 ** np.floor(np.log2(largest)) * epsilon if largest else epsilon
    with np.errstate(all="ignore"):
        count = np.minimum(np.ceil(_absolute(x, y) / ulp), _MOST)
    return np.asarray(np.nan_to_num(count, nan=_MOST)).astype(np.uint64)


def _absolute(a: AnyArray, b: AnyArray) -> AnyArray:
    with np.errstate(all="ignore"):
        found: AnyArray = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return found


def _same_type(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Both arrays contiguous, in the coarser of two types of floating-point numbers."""
    kind = min(x.dtype, y.dtype, key=lambda each: each.itemsize)
    if x.dtype.kind != "f" or y.dtype.kind != "f":
        kind = np.result_type(x, y)
    return np.array(x, kind, order="C"), np.array(y, kind, order="C")


def _ordered(bits: AnyArray) -> AnyArray:
    """Integers in the order of the numbers that have these bits: neighbours differ by 1."""
    sign = np.array(1 << (8 * bits.itemsize - 1), bits.dtype)
    ordered = np.where(bits & sign, ~bits, bits | sign)
    return ordered.astype(np.uint64)


def _histogram(distance: AnyArray) -> tuple[HistogramBin, ...]:
    """Counts of elements: equal ones, 1 ulp, 2 to 3, 4 to 7, and so on."""
    found = [HistogramBin(0, 0, int(np.count_nonzero(distance == 0)))]
    first, largest = 1, int(distance.max(initial=0))
    while first <= largest:
        last = 2 * first - 1
        inside = (distance >= np.uint64(first)) & (distance <= np.uint64(last))
        found.append(HistogramBin(first, last, int(np.count_nonzero(inside))))
        first = last + 1
    return tuple(each for each in found if each.count)
