"""Prefetch: groups of weights that may come to a wafer before their visits.

Both ends of a stream go by it, and the compile report: the wafer's slots, and those who draw them.
"""

from collections.abc import Sequence

from csrun.executable.stored_groups import Group


def lie_over(group: Group, other: Group) -> bool:
    """Return whether two groups have bytes of the weight slots in common."""
    start, other_start = group.slot_offset_bytes or 0, other.slot_offset_bytes or 0
    return start < other_start + other.sent_bytes and other_start < start + group.sent_bytes


def fetches(
    groups: Sequence[Group], order: Sequence[Sequence[int]], least_bytes: int = 0
) -> list[list[int]]:
    """For each visit, the groups that begin to come while it is computed, in the order of use.

    A group may come as soon as nothing lies in its place that is used before it, and after all
    that is used before it and comes, too. What is there from an earlier visit does not come again.

    order: the groups of each visit of a step. least_bytes: of a group; smaller ones are left out.
    """
    found: list[list[int]] = [[] for _ in order]
    earliest = 0
    for visit, needed in enumerate(order):
        for group in needed:
            first = _free_from(groups, order, visit, group)
            if groups[group].sent_bytes < least_bytes or first is None:
                continue
            # In the order of use: what comes later is not to delay what is needed sooner.
            earliest = max(earliest, first)
            if earliest < visit:
                found[earliest].append(group)
    return found


def _free_from(
    groups: Sequence[Group], order: Sequence[Sequence[int]], visit: int, group: int
) -> int | None:
    """The first visit since which a group's place is free for this one; None if it is there."""
    for before in reversed(range(visit)):
        if group in order[before]:
            return None
        if any(lie_over(groups[group], groups[other]) for other in order[before]):
            return before + 1
    return 0
