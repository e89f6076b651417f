"""Windows of convolutions and poolings: the pixel that each of their elements reads."""

from collections.abc import Sequence
from typing import NamedTuple

Pair = tuple[int, int]
Part = tuple[slice, slice]


class Tap(NamedTuple):
    """One pixel of all windows: its index, the part of an image it reads, and the windows that have
    it inside.
    """

    pixel: Pair
    image: Part
    places: Part


def taps(
    image: Pair, places: Pair, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tap, ...]:
    """Return the taps of the windows, row by row, without those that are always outside the image.

    image, places: rows and columns of an image, and of its windows.
    """
    rows, columns = (
        _taps(*axis) for axis in zip(image, places, size, stride, padding, dilation, strict=True)
    )
    return tuple(
        Tap((i, j), (down, right), (below, behind))
        for i, down, below in rows
        for j, right, behind in columns
    )


def _taps(
    length: int, count: int, size: int, stride: int, padding: int, dilation: int
) -> list[tuple[int, slice, slice]]:
    found = []
    for tap in range(size):
        shift = tap * dilation - padding  # window p reads pixel p stride + shift
        first = max(0, -(shift // stride))
        end = min(count, (length - 1 - shift) // stride + 1)
        if first < end:
            start = first * stride + shift
            read = slice(start, start + (end - 1 - first) * stride + 1, stride)
            found.append((tap, read, slice(first, end)))
    return found


def are_inside(found: Sequence[Tap], size: Pair, places: Pair) -> bool:
    """Return whether all windows are inside the image."""
    whole = slice(0, places[0]), slice(0, places[1])
    return len(found) == size[0] * size[1] and all(tap.places == whole for tap in found)
