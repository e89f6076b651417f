"""Facts of a plan about gradients: where they lie, and what an update must wait for."""

from collections.abc import Sequence
from typing import TypeVar

from csrun.executable import Plan
from csrun.executable.store_places import gradient_bytes

E = TypeVar("E")


def measuring(plan: Plan, ends: Sequence[E], server_of: Sequence[int]) -> list[E]:
    """Tasks whose gradients must be measured jointly before an update."""
    if len(ends) == 1 or not plan.measures:
        return []
    return [ends[server] for server in sorted({server_of[group] for group in plan.deliveries})]


def gradients_below(plan: Plan, server_of: Sequence[int] | None = None) -> list[list[int]]:
    """For each visit, the other groups whose gradients lie where it writes its own.

    server_of: for each group the task in whose store that is; None where there is one place for all
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
    """For each visit, the groups to whose gradients the one before has given its part alone."""
    adds = plan.accumulates
    before = [[g for g in v.gradients if adds or g not in v.completes] for v in plan.order]
    return [[], *before[:-1]]
