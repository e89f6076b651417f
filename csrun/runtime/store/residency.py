"""Which bytes of a store on disk stay in memory between their uses: as many as it may have.

A step uses all of the store once, in the same order as the step before. Of what is used in a circle
the newest is the last to be used again: to keep the newest keeps nothing. So what stays is chosen
once: weights first, which a step reads twice and updates, then optimizer state, which it reads and
writes once. All else leaves memory after each use.
"""

from collections.abc import Iterator
from heapq import nlargest
from itertools import chain, zip_longest

from csrun.base.errors import CsrunError
from csrun.executable import Plan
from csrun.executable.bind import gradients_offset
from csrun.executable.plan import Group

UPDATED_LOTS = 3  # groups whose state is there meanwhile: written back, updated, fetched ahead
READ_LOTS = 2  # groups whose weights are there for the wafer: the one it copies, and the next


class Residency:
    """What of a store leaves memory after its use; `memory_bytes` is the most that is there.

    Raises: CsrunError when that is too little for the groups that are at work at a time
    """

    def __init__(self, owner: Plan, memory_bytes: int) -> None:
        regions = _regions(owner)
        least = least_bytes(owner)
        if memory_bytes < least:
            raise CsrunError(
                f"runconfig.weight_store_memory must be at least {least:,} bytes for this model, "
                f"of which groups up to {_largest(owner):,} bytes of state are updated at a time, "
                f"got {memory_bytes:,}"
            )
        room = owner.store.nbytes if memory_bytes >= owner.store.nbytes else memory_bytes - least
        self._leaving: list[range] = []
        for region in regions:
            kept = min(room, len(region))
            room -= kept
            self._leaving.append(range(region.start + kept, region.stop))

    def leaving(self, used: range) -> Iterator[range]:
        """The parts of these bytes that do not stay."""
        for region in self._leaving:
            start, stop = max(used.start, region.start), min(used.stop, region.stop)
            if start < stop:
                yield range(start, stop)


def least_bytes(plan: Plan) -> int:
    """What a store needs in memory at any time: what never leaves, and the groups at work."""
    fixed = plan.store.nbytes - sum(map(len, _regions(plan)))
    updated = (_state_bytes(plan, group) for group in plan.groups)
    read = (group.nbytes for group in plan.groups)
    at_work = sum(nlargest(UPDATED_LOTS, updated)) + sum(nlargest(READ_LOTS, read))
    return min(fixed + at_work, plan.store.nbytes)


def weights_of(plan: Plan, group: Group) -> range:
    """A group's weights, by bytes of the store."""
    return _at(plan.store.weights_offset + group.offset_bytes, group.nbytes)


def state_of(plan: Plan, group: Group) -> list[range]:
    """What an update reads and writes of a group, besides gradients that stay."""
    slots = [_at(slot.offset_bytes + group.offset_bytes, group.nbytes) for slot in plan.store.slots]
    return [weights_of(plan, group), *slots, *spilled_gradients(plan, group)]


def spilled_gradients(plan: Plan, group: Group) -> list[range]:
    """A group's gradients where they wait for others of the step, and may leave memory."""
    offset = gradients_offset(plan, group)
    return [] if offset is None or plan.has_window else [_at(offset, group.nbytes)]


def _at(start: int, nbytes: int) -> range:
    return range(start, start + nbytes)


def _regions(plan: Plan) -> list[range]:
    """The regions that groups have parts of, but for a window of gradients; weights come first."""
    of_groups = [state_of(plan, group) for group in plan.groups]
    regions = ([p for p in parts if p is not None] for parts in zip_longest(*of_groups))
    return [range(min(p.start for p in ps), max(p.stop for p in ps)) for ps in regions]


def _state_bytes(plan: Plan, group: Group) -> int:
    return sum(map(len, state_of(plan, group)))


def _largest(plan: Plan) -> int:
    return max(chain((_state_bytes(plan, group) for group in plan.groups), (0,)))
