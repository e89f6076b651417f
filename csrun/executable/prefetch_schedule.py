"""Prefetch schedule: weights that are sent to the wafer before the visits that use them.

The wafer, the sender of the weights and the compile report evaluate the same schedule.
"""

from collections.abc import Sequence

from csrun.executable.stored_groups import Group


def slots_overlap(group: Group, other: Group) -> bool:
    """Return whether two groups overlap in the wafer's weight slots."""
    start, other_start = group.slot_offset_bytes or 0, other.slot_offset_bytes or 0
    return start < other_start + other.sent_bytes and other_start < start + group.sent_bytes


def prefetch_points(
    groups: Sequence[Group], order: Sequence[Sequence[int]], least_bytes: int = 0
) -> list[list[int]]:
    """For each visit, return the groups whose transfer starts while it is computed, in order of
    use.

    A group's transfer starts once its slot is free of weights that are still needed, and after the
    transfers of all groups that are used before it. A group that is still resident from an earlier
    visit is not transferred again.

    order: groups that each visit of a step uses.
    least_bytes: groups below this size are not prefetched.
    """
    found: list[list[int]] = [[] for _ in order]
    earliest = 0
    for visit, needed in enumerate(order):
        for group in needed:
            first = _free_from(groups, order, visit, group)
            if groups[group].sent_bytes < least_bytes or first is None:
                continue
            # In order of use, so that a later group never delays an earlier one.
            earliest = max(earliest, first)
            if earliest < visit:
                found[earliest].append(group)
    return found


def _free_from(
    groups: Sequence[Group], order: Sequence[Sequence[int]], visit: int, group: int
) -> int | None:
    """Return the first visit at which a group's slot is free; None if the group is still
    resident.
    """
    for before in reversed(range(visit)):
        if group in order[before]:
            return None
        if any(slots_overlap(groups[group], groups[other]) for other in order[before]):
            return before + 1
    return 0
