"""Pooling over preallocated arrays, a tile of planes at a time: one pass per pixel of the
windows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.kernels.windows import Tap

Array = npt.NDArray[Any]
Taps = tuple[Tap, ...]


def max_pool(
    x: Array,
    out: Array,
    offsets: Array,
    scratch: tuple[Array, Array, Array],
    first: Array,
    taps: Taps,
    width: int,
) -> None:
    """Max pooling [N, H, W] -> [N, H', W'], with the offset of the maximum in each window.

    Shapes: x [N, H, W], out, offsets [N, H', W'], scratch [T, H', W'] of x's type, of offsets' and
    bool, first [H', W'] as of `first_inside`; width: pixels in a row of a window
    """
    for at in range(0, len(x), len(scratch[0])):
        rows = slice(at, at + len(scratch[0]))
        planes, largest, taken = x[rows], out[rows], offsets[rows]
        seen, numbers, chosen = (array[: len(planes)] for array in scratch)
        largest[...] = -np.inf
        taken[...] = first
        for tap in taps:
            np.greater(_see(planes, tap, seen), largest, out=chosen)
            _take(taken, chosen, numbers, tap, width)
            np.maximum(largest, seen, out=largest)  # NaN is preserved
        if np.isnan(largest, out=chosen).any():
            for tap in taps:  # the last NaN of a window is its maximum
                np.isnan(_see(planes, tap, seen), out=chosen)
                _take(taken, chosen, numbers, tap, width)


def _see(planes: Array, tap: Tap, seen: Array) -> Array:
    """Copy one pixel of all windows to contiguous memory, so that comparing it is one loop."""
    places = seen[:, *tap.places]
    if places.shape != seen.shape:
        seen[...] = -np.inf
    places[...] = planes[:, *tap.image]
    return seen


def _take(taken: Array, chosen: Array, numbers: Array, tap: Tap, width: int) -> None:
    """Record the pixel's index where it exceeds the maximum so far."""
    np.multiply(chosen, _number(tap, width), out=numbers)
    np.maximum(taken, numbers, out=taken)


def _number(tap: Tap, width: int) -> np.int32:
    return np.int32(tap.pixel[0] * width + tap.pixel[1])


def max_pool_backward(
    grad: Array, offsets: Array, out: Array, scratch: tuple[Array, Array], taps: Taps, width: int
) -> None:
    """Max pooling gradient [N, H', W'] -> [N, H, W]: sum over the windows whose maximum is the
    pixel.

    Gradients are selected by bit masks: 0 times a non-finite number is not 0.

    Shapes: grad, offsets [N, H', W'], out [N, H, W], scratch [T, H', W'] of grad's type and of
    integers of the same size
    """
    out[...] = 0
    for at in range(0, len(out), len(scratch[0])):
        rows = slice(at, at + len(scratch[0]))
        planes, bits = out[rows], grad[rows].view(scratch[1].dtype)
        share, took = (array[: len(planes)] for array in scratch)
        for tap in taps:
            np.equal(offsets[rows], _number(tap, width), out=took)
            np.negative(took, out=took)  # all bits set
            np.bitwise_and(bits, took, out=share.view(took.dtype))
            pixels = planes[:, *tap.image]
            np.add(pixels, share[:, *tap.places], out=pixels)


def avg_pool(x: Array, out: Array, counts: Array, tile: int, taps: Taps) -> None:
    """Average pooling [N, H, W] -> [N, H', W']: sum over each window, divided by its count.

    Shapes: x [N, H, W], out [N, H', W'], counts [H', W']
    """
    for at in range(0, len(x), tile):
        planes, means = x[at : at + tile], out[at : at + tile]
        means[...] = 0
        for _, (down, right), (below, behind) in taps:
            total = means[:, below, behind]
            np.add(total, planes[:, down, right], out=total)
        np.divide(means, counts, out=means)


def avg_pool_backward(grad: Array, out: Array, counts: Array, shares: Array, taps: Taps) -> None:
    """Average pooling gradient [N, H', W'] -> [N, H, W]: sum of each pixel's shares.

    Shapes: grad [N, H', W'], out [N, H, W], counts [H', W'], shares [T, H', W']
    """
    out[...] = 0
    for at in range(0, len(out), len(shares)):
        planes = out[at : at + len(shares)]
        own = np.divide(grad[at : at + len(shares)], counts, out=shares[: len(planes)])
        for _, (down, right), (below, behind) in taps:
            pixels = planes[:, down, right]
            np.add(pixels, own[:, below, behind], out=pixels)


def first_inside(places: tuple[int, int], taps: Taps, width: int) -> Array:
    """First unpadded pixel [H', W'] of each window, the maximum if all values are -inf.

    Shapes: int32 [H', W']
    """
    first = np.zeros(places, np.int32)
    for (i, j), _, place in reversed(taps):
        first[place] = i * width + j
    return first


def counts_inside(places: tuple[int, int], taps: Taps, dtype: str) -> Array:
    """Counts [H', W'] of the pixels of each window that are not padding.

    Shapes: [H', W']
    """
    counts = np.zeros(places, dtype)
    for _, _, place in taps:
        counts[place] += 1
    return counts
