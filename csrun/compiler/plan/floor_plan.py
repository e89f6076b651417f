"""Floor plan of a pipelined model: a rectangle of the fabric for each of its layers.

The slowest layer limits a pipeline, so the first objective is the rate: the minimum over layers of
PEs per FLOP. The second is wire length: the sum, over connected layers, of the distance between
their centres along columns and rows.

Layers are arranged in strips of whole columns, in the model's order, down one strip and up the
next, so that consecutive layers are neighbours. A layer is as wide as its strip and takes the rows
that it needs. For several ways to cut the model into strips, bisection finds the largest rate at
which the strips fit next to each other. Of the plans with about the highest rate, the one with the
shortest wires is chosen.

Source: own design, after the strip treemaps of Bederson et al. 2002, Ordered and quantum treemaps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from csrun.executable import Rectangle
from csrun.site import System

Integers = NDArray[np.int64]
Cut = tuple[int, ...]  # the first layer of each strip

AS_FAST = 0.99  # share of the highest rate
HALVINGS = 20  # precision of the rate, relative to its bound


@dataclass(frozen=True)
class Wire:
    """Two connected layers, by index in the model's order."""

    source: int
    target: int


class Demands:
    """Demands of a model's layers on the fabric, in order.

    flops: work of each.
    memory_pes: number of PEs whose memory holds its data.
    """

    def __init__(self, flops: Sequence[int], memory_pes: Sequence[int]) -> None:
        # at least one, so that a layer that only moves data has a rate, too
        self.flops = np.maximum(np.array(flops, np.float64), 1.0)
        self.memory_pes = np.maximum(np.array(memory_pes, np.int64), 1)

    def areas(self, rate: float) -> Integers:
        """Return the PEs of each layer at a number of PEs per FLOP, or for its memory if that needs
        more.
        """
        return np.maximum(self.memory_pes, np.ceil(self.flops * rate).astype(np.int64))

    def rate_bound(self, pes: int) -> float:
        """Return the highest rate with this many PEs of any shape."""
        low, high = 0.0, pes / float(self.flops.sum())
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            fits = np.maximum(self.memory_pes, self.flops * middle).sum() <= pes
            low, high = (middle, high) if fits else (low, middle)
        return high


def usable_part(system: System) -> Rectangle:
    """Return the PEs that a program can use: the fabric without some columns and rows at its
    border.
    """
    width, height = system.usable_width, system.usable_height
    x, y = (system.fabric_width - width) // 2, (system.fabric_height - height) // 2
    return Rectangle(x, y, width, height)


def equal_parts(part: Rectangle, count: int) -> tuple[Rectangle, ...]:
    """Return equal parts in rows and columns: the largest possible, and the squarest of those."""

    def size(columns: int) -> tuple[int, int]:
        return part.width // columns, part.height // -(-count // columns)

    def area_and_shape(columns: int) -> tuple[int, int]:
        width, height = size(columns)
        return width * height, -abs(width - height)

    columns = max(range(1, min(count, part.width) + 1), key=area_and_shape)
    width, height = size(columns)
    return tuple(
        Rectangle(
            part.x + index % columns * width, part.y + index // columns * height, width, height
        )
        for index in range(count)
    )


def moved(rectangle: Rectangle, source: Rectangle, target: Rectangle) -> Rectangle:
    """Move a rectangle from one part to the same position in another."""
    x, y = rectangle.x + target.x - source.x, rectangle.y + target.y - source.y
    return Rectangle(x, y, rectangle.width, rectangle.height)


def pes_needed(demands: Demands, part: Rectangle) -> int:
    """Return the PEs in whole columns of `part` that hold the layers' memory; may exceed the
    part.
    """
    areas = demands.areas(0.0)
    return part.height * min(
        int(_widths(areas, cut, part.height).sum()) for cut in _cuts(areas, part.height)
    )


def arrange(demands: Demands, wires: Sequence[Wire], part: Rectangle) -> tuple[Rectangle, ...]:
    """Return a rectangle of `part` for each layer, without overlaps.

    Raises: ValueError if the layers' memory does not fit, see `pes_needed`
    """
    bound = demands.rate_bound(part.pes)
    cuts = [cut for rate in (0.0, bound) for cut in _cuts(demands.areas(rate), part.height)]
    rates = {
        cut: _largest_rate(demands, cut, part, bound)
        for cut in dict.fromkeys(cuts)
        if _fits(demands.areas(0.0), cut, part)
    }
    if not rates:
        raise ValueError(f"the memory of the layers does not fit {part}")
    least = AS_FAST * max(rates.values())
    plans = [
        _in_strips(demands.areas(rate), cut, part) for cut, rate in rates.items() if rate >= least
    ]
    return min(plans, key=lambda plan: wire_length(plan, wires))


def wire_length(plan: Sequence[Rectangle], wires: Sequence[Wire]) -> float:
    """Return the sum of the distances between centres of connected layers, along columns and
    rows.
    """
    centres = [(r.x + r.width / 2, r.y + r.height / 2) for r in plan]
    pairs = [(centres[wire.source], centres[wire.target]) for wire in wires]
    return sum(abs(x1 - x0) + abs(y1 - y0) for (x0, y0), (x1, y1) in pairs)


def _cuts(areas: Integers, height: int) -> list[Cut]:
    """Return cuts into 1, 2, … strips of about equal area, and one strip per layer.

    A layer larger than a strip gets one for itself. No strip has more layers than rows.
    """
    total, centres = int(areas.sum()), np.cumsum(areas) - areas // 2
    every = np.arange(len(areas))
    strips = [centres * count // (total + 1) for count in range(1, 2 * isqrt(len(areas)) + 2)]
    return [
        tuple(np.unique(strip, return_index=True)[1].tolist())
        for strip in (*strips, every)
        if np.bincount(strip).max() <= height
    ]


def _widths(areas: Integers, cut: Cut, height: int) -> Integers:
    """Return the minimum width of each strip at which the rows of its layers fit its height."""
    counts = np.diff([*cut, len(areas)])
    total = np.add.reduceat(areas, cut)
    low, high = _ceil(total, height), _ceil(total, np.maximum(height - counts, 1))
    while (low < high).any():
        middle = (low + high) // 2
        rows = np.add.reduceat(_ceil(areas, np.repeat(middle, counts)), cut)
        low = np.where(rows > height, middle + 1, low)
        high = np.where(rows > height, high, middle)
    return low


def _ceil(number: Integers, divisor: Integers | int) -> Integers:
    return -(-number // divisor)


def _fits(areas: Integers, cut: Cut, part: Rectangle) -> bool:
    return int(_widths(areas, cut, part.height).sum()) <= part.width


def _largest_rate(demands: Demands, cut: Cut, part: Rectangle, bound: float) -> float:
    low, high = 0.0, bound
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = _fits(demands.areas(middle), cut, part)
        low, high = (middle, high) if fits else (low, middle)
    return low


def _in_strips(areas: Integers, cut: Cut, part: Rectangle) -> tuple[Rectangle, ...]:
    """Return the rectangles, down the first strip, up the second and so on."""
    found, x = [], part.x
    widths = _widths(areas, cut, part.height).tolist()
    for index, (first, end) in enumerate(pairwise((*cut, len(areas)))):
        width, row = widths[index], 0
        for area in areas[first:end].tolist():
            height = -(-area // width)
            # Every other strip is upwards, so that the last layer of one is next to the first of
            # the next.
            y = row if index % 2 == 0 else part.height - row - height
            found.append(Rectangle(x, part.y + y, width, height))
            row += height
        x += width
    return tuple(found)
