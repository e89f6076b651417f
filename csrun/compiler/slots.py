"""Weight slots: where on the wafer each group's weights come, so that the next one fits beside;
and the window of gradients, where MemoryX has those that come next.

Groups whose visits follow each other lie apart: the one at the front of the slots, the other at
their end. So two groups are there at a time, and the slots take what the two largest neighbours
need, at most twice the largest group. A group that is visited among several others may have
neighbours at both ends; it lies between, or where it must wait for its turn to come in.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from csrun.executable import Visit


def place_groups(sizes: Sequence[int], order: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each group, and the length of all slots.

    sizes: bytes of each group; order: the groups in the order of a step's visits
    """
    beside: list[set[int]] = [set() for _ in sizes]
    for group, following in pairwise(order):
        if group != following:
            beside[group].add(following)
            beside[following].add(group)
    pairs = (sizes[group] + max((sizes[b] for b in beside[group]), default=0) for group in {*order})
    least, most = max(pairs, default=0), 2 * max((sizes[group] for group in {*order}), default=0)
    plans = [_placed(sizes, order, beside, length) for length in dict.fromkeys((least, most))]
    offsets, length, _ = min(plans, key=lambda plan: (plan[2], plan[1]))
    return offsets, length


def place_gradients(sizes: Sequence[int], visits: Sequence[Visit]) -> tuple[list[int | None], int]:
    """The offset of each group's gradients, None where it has none, and the length of the window.

    Gradients that one visit writes and completes lie apart from those before and behind them: the
    wafer writes the ones while MemoryX updates by the others. Those that stay for more visits, or
    come together with others, have a place for themselves.
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
    sizes: Sequence[int], order: Sequence[int], beside: Sequence[set[int]], length: int
) -> tuple[list[int], int, int]:
    """Offsets in slots of a length, the length, and how many groups lie over a neighbour."""
    offsets: dict[int, int] = {}
    at_end, conflicts = True, 0
    for group in order:
        if group in offsets:
            at_end = offsets[group] != 0
            continue
        size = sizes[group]
        taken = [(offsets[b], offsets[b] + sizes[b]) for b in beside[group] if b in offsets]
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
    return [offsets.get(group, 0) for group in range(len(sizes))], length, conflicts
