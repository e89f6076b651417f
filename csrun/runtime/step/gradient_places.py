"""Locations of gradients in a plan, and the dependencies of their updates."""

from collections.abc import Sequence
from typing import TypeVar

from csrun.executable import Plan
from csrun.executable.store_places import gradient_bytes

E = TypeVar("E")


def measuring(plan: Plan, ends: Sequence[E], server_of: Sequence[int]) -> list[E]:
    """Return the tasks whose gradient norms must be combined before an update."""
    if len(ends) == 1 or not plan.measures:
        return []
    return [ends[server] for server in sorted({server_of[group] for group in plan.deliveries})]


def gradients_below(plan: Plan, server_of: Sequence[int] | None = None) -> list[list[int]]:
    """For each visit, return the other groups whose gradients are overwritten by its own.

    server_of: for each group the task whose store has it; None if there is one store.
    """
    places = {
        g.index: range(g.gradients_offset_bytes, g.gradients_offset_bytes + gradient_bytes(plan, g))
        for g in plan.groups
        if g.gradients_offset_bytes is not None
    }

    def below(group: int) -> list[int]:
        own = places[group]
        return [
            other
            for other, place in places.items()
            if other != group
            and place.start < own.stop
            and own.start < place.stop
            and (server_of is None or server_of[other] == server_of[group])
        ]

    found = {group: below(group) for group in places}
    return [[other for group in v.gradients for other in found.get(group, ())] for v in plan.order]


def added_before(plan: Plan) -> list[list[int]]:
    """For each visit, return the groups to which the previous visit added an incomplete part."""
    adds = plan.accumulates
    before = [[g for g in v.gradients if adds or g not in v.completes] for v in plan.order]
    return [[], *before[:-1]]
