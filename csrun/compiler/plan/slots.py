"""Weight slots of the groups on the wafer, and the window of gradients in the store.

Slots are placed so that the next groups fit next to the current one; the window holds gradients
that MemoryX applies next. Groups of consecutive visits do not overlap. If the slots are no larger
than the two largest neighbours need, one of them is at the front and the other at the end; a group
with neighbours at both ends is in between, or has to wait before it is sent. With more space, up to
twice the largest group, the slots are a ring: a group overwrites the one whose visits are farthest,
in bytes used in between.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from csrun.executable import Visit

AHEAD_BYTES = 64 << 20  # bytes of weights that are prefetched during the largest group


def place_groups(
    sizes: Sequence[int], order: Sequence[int], ahead_bytes: int = 0
) -> tuple[list[int], int]:
    """Return the offset of each group, and the size of all slots.

    sizes: size of each group.
    order: groups in the order of a step's visits.
    ahead_bytes: space for prefetched weights next to the largest group, or another one as large.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for group, following in pairwise(order):
        if group != following:
            neighbours[group].add(following)
            neighbours[following].add(group)
    pairs = (
        sizes[group] + max((sizes[b] for b in neighbours[group]), default=0) for group in {*order}
    )
    least, largest = max(pairs, default=0), max((sizes[group] for group in {*order}), default=0)
    plans = [_placed(sizes, order, neighbours, length) for length in (least, 2 * largest)]
    if (length := largest + min(largest, ahead_bytes)) > least:
        plans.insert(0, _in_ring(sizes, order, length))
    offsets, _ = min(plans, key=lambda plan: plan[1])
    return offsets, max((offsets[group] + sizes[group] for group in {*order}), default=0)


def place_gradients(sizes: Sequence[int], visits: Sequence[Visit]) -> tuple[list[int | None], int]:
    """Return the offset of each group's gradients, None without gradients, and the size of the
    window.

    Gradients that one visit writes and completes do not overlap with those before and after them:
    the wafer writes one while MemoryX applies the others. Gradients of several visits, or completed
    together with others, have their own place.
    """
    visited = Counter(group for visit in visits for group in visit.gradients)
    order = [
        group
        for visit in visits
        for group in visit.gradients
        if visited[group] == len(visit.gradients) == 1 and group in visit.completes
    ]
    offsets, end = place_groups(sizes, order)
    found: list[int | None] = [None] * len(sizes)
    for group in order:
        found[group] = offsets[group]
    for group in sorted(visited.keys() - {*order}):
        found[group] = end
        end += sizes[group]
    return found, end


def _placed(
    sizes: Sequence[int], order: Sequence[int], neighbours: Sequence[set[int]], length: int
) -> tuple[list[int], int]:
    """Return offsets at the ends of slots of a size, and how many groups overlap a neighbour."""
    offsets: dict[int, int] = {}
    at_end, conflicts = True, 0
    for group in order:
        if group in offsets:
            at_end = offsets[group] != 0
            continue
        size = sizes[group]
        taken = [(offsets[b], offsets[b] + sizes[b]) for b in neighbours[group] if b in offsets]
        ends = (length - size, 0) if not at_end else (0, length - size)
        between = sorted(end for _, end in taken if end + size <= length)
        free = (
            offset
            for offset in (*ends, *between)
            if all(offset + size <= start or end <= offset for start, end in taken)
        )
        found = next(free, None)
        conflicts += found is None
        offsets[group] = ends[0] if found is None else found
        at_end = offsets[group] != 0
    return [offsets.get(group, 0) for group in range(len(sizes))], conflicts


def _in_ring(sizes: Sequence[int], order: Sequence[int], length: int) -> tuple[list[int], int]:
    """Return offsets in a ring of a size, and how many groups overlap a neighbour."""
    between = _bytes_between(sizes, order, length)
    offsets: dict[int, int] = {}
    front = conflicts = 0
    for group in dict.fromkeys(order):
        near = {g: n for g, n in between[group].items() if g in offsets}
        taken = [(offsets[g], offsets[g] + sizes[g], nbytes) for g, nbytes in near.items()]
        offsets[group], nbytes = _farthest(sizes[group], length, front, taken)
        conflicts += nbytes == 0
        front = offsets[group] + sizes[group]
    return [offsets.get(group, 0) for group in range(len(sizes))], conflicts


def _farthest(
    size: int, length: int, front: int, taken: Sequence[tuple[int, int, int]]
) -> tuple[int, float]:
    """Return the offset at which a group overlaps those used farthest from it; and the distance.

    front: end of the previous group.
    taken: starts and ends of others, and the bytes in between.
    """
    ends = [place for start, end, _ in taken for place in (end, start - size)]
    places = [o for o in (front, 0, *ends, length - size) if 0 <= o <= length - size]
    least = _least_between(size, places, taken)
    return max(((place, least[place]) for place in places), key=lambda found: found[1])


def _least_between(
    size: int, places: Sequence[int], taken: Sequence[tuple[int, int, int]]
) -> dict[int, float]:
    """Return for each offset the minimum distance in bytes of a group there to those that it
    overlaps.
    """
    ordered = sorted(set(places))
    least = np.full(len(ordered), inf)
    for start, end, nbytes in sorted(taken, key=lambda each: -each[2]):
        least[bisect_right(ordered, start - size) : bisect_left(ordered, end)] = nbytes
    return dict(zip(ordered, least.tolist(), strict=True))


def _bytes_between(sizes: Sequence[int], order: Sequence[int], most: int) -> list[dict[int, int]]:
    """Return for each group those visited near it, and the minimum number of bytes in between."""
    found: list[dict[int, int]] = [{} for _ in sizes]
    for place, group in enumerate(order):
        nbytes = 0
        for at in range(place + 1, len(order)):
            other = order[at]
            if nbytes > most or other == group:
                break
            for one, two in ((group, other), (other, group)):
                found[one][two] = min(nbytes, found[one].get(two, nbytes))
            nbytes += sizes[other]
    return found
