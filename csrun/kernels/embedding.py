"""Embedding lookup and its gradient, over preallocated arrays."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Scatter(NamedTuple):
    """Positions 0, 1, … and scratch of a scatter-add: sorted indices, and gradients in their order.

    sums: scratch of accumulated sums.

    Shapes: positions [N], ordered, sums [N, D], numbers int64 [3, N], changes bool [N]
    """

    positions: Array
    ordered: Array
    numbers: Array
    changes: Array
    sums: Array | None = None


class Shard(NamedTuple):
    """First row of a shard of a table, and scratch: each index's row in it, and whether it has one.

    Shapes: places int64 [N], inside bool [N]
    """

    first: int
    places: Array
    inside: Array


def lookup(table: Array, indices: Array, out: Array) -> None:
    """Lookup [V, D], [N] -> [N, D]: out[n] = table[indices[n]]; the indices have been checked.

    Shapes: table [V, D], indices [N], out [N, D]
    """
    np.take(table, indices, axis=0, out=out, mode="clip")


def lookup_part(table: Array, indices: Array, out: Array, shard: Shard, rows: Array) -> None:
    """Lookup [R, D], [N] -> [N, D] in a shard: out[n] = table[indices[n] - first] if it is in the
    shard.

    Shapes: table [R, D], indices [N], out [N, D]; scratch: rows [N, D]
    """
    _places_in(len(table), indices, shard)
    np.take(table, shard.places, axis=0, out=rows, mode="clip")
    np.copyto(out, rows, where=shard.inside[:, None])


def add_up_part(
    grad: Array, indices: Array, out: Array, scatter: Scatter, shard: Shard, padding: int
) -> None:
    """Scatter-add [N, D], [N] -> [R, D] as `add_up`, of the indices within the shard from `first`
    on.

    Shapes: grad [N, D], indices [N], out [R, D]
    """
    first, places, inside = shard
    _places_in(len(out), indices, shard)
    np.logical_not(inside, out=inside)
    np.copyto(places, len(out), where=inside)
    padding -= first
    add_up(grad, places, out, scatter, padding if padding < len(out) else -1)


def _places_in(rows: int, indices: Array, shard: Shard) -> None:
    """Write each index relative to the shard; as unsigned numbers, indices of other shards are out
    of range.
    """
    np.subtract(indices, shard.first, out=shard.places)
    np.less(shard.places.view(np.uint64), rows, out=shard.inside)


def add_up(grad: Array, indices: Array, out: Array, scatter: Scatter, padding: int) -> None:
    """Scatter-add [N, D], [N] -> [V, D]: each row of `out` is the sum of its index's gradients.

    The gradients are sorted by row, and each run of equal indices is summed. With `scatter.sums`
    the sums are added to `out`. Index V, which is not a row, is skipped.

    Shapes: grad [N, D], indices [N], out [V, D]; row `padding` gets no gradient, -1 for none
    """
    if scatter.sums is None:
        out[...] = 0
    if not len(indices):
        return
    keys, order, rows = scatter.numbers
    # By index, then by position; an int32 product would overflow.
    np.multiply(indices, len(indices), out=keys, dtype=np.int64)
    np.add(keys, scatter.positions, out=keys)
    keys.sort()
    np.remainder(keys, len(indices), out=order)
    np.floor_divide(keys, len(indices), out=rows)
    np.take(grad, order, axis=0, out=scatter.ordered, mode="clip")
    starts, found = _runs(rows, scatter)
    sums = scatter.ordered[: len(starts)]
    np.add.reduceat(scatter.ordered, starts, axis=0, out=sums)
    if found[-1] == len(out):
        sums, found = sums[:-1], found[:-1]
    if padding >= 0:
        sums[found == padding] = 0
    if scatter.sums is not None:
        present = np.take(out, found, axis=0, out=scatter.sums[: len(found)], mode="clip")
        np.add(sums, present, out=sums)
    out[found] = sums


def _runs(rows: Array, scatter: Scatter) -> tuple[Array, Array]:
    """Return the start of each run of equal indices, and its index."""
    keys, order, _ = scatter.numbers
    scatter.changes[0] = True
    np.not_equal(rows[1:], rows[:-1], out=scatter.changes[1:])
    np.cumsum(scatter.changes, out=keys)
    count = int(keys[-1])
    np.subtract(keys, 1, out=keys)
    order[keys[::-1]] = scatter.positions[::-1]  # the first position of a run is written last
    starts = order[:count]
    return starts, np.take(rows, starts, out=keys[:count], mode="clip")
