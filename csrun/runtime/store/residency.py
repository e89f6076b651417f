"""Residency of a store on disk: the bytes kept in memory between their uses.

A step uses all of the store once, always in the same order. With such a cyclic access an LRU cache
never hits. Resident ranges are therefore chosen once: weights first, which a step reads twice and
updates, then optimizer state, which it reads and writes once. Everything else is evicted after each
use, and only that needs space in the file.
"""

import mmap
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import chain, zip_longest

from csrun.base.errors import CsrunError
from csrun.executable import Plan
from csrun.executable.shards import Own, StoreShards, groups_of_server
from csrun.executable.store_places import gradient_bytes, gradients_offset, of_system
from csrun.executable.stored_groups import Group

UPDATED_LOTS = 3  # groups whose state is in memory at a time: written back, updated, prefetched
# groups whose weights are in memory for the wafer: the one being copied, and the next
READ_LOTS = 2


class Residency:
    """Ranges of a store that are evicted after use; `memory_bytes` is the maximum in memory.

    own: groups that the store has memory for.

    Raises: CsrunError if that is less than the working set
    """

    def __init__(self, owner: Plan, memory_bytes: int, own: Own = None) -> None:
        regions = _regions(owner, own)
        least, most = least_bytes(owner, own), store_bytes(owner, own)
        if memory_bytes < least:
            raise _too_little(owner, least, memory_bytes)
        room = most if memory_bytes >= most else memory_bytes - least
        self._leaving: list[range] = []
        for region in regions:
            kept = min(room, len(region))
            room -= kept
            self._leaving.append(whole_pages(range(region.start + kept, region.stop)))

    def leaving(self, used: range) -> Iterator[range]:
        """Return the parts of these bytes that are not resident."""
        for region in self._leaving:
            start, stop = max(used.start, region.start), min(used.stop, region.stop)
            if start < stop:
                yield range(start, stop)

    def pieces(self, used: range) -> Iterator[tuple[range, bool]]:
        """Split bytes into parts, each with whether it is evicted."""
        at = used.start
        for leaving in sorted(self.leaving(used), key=lambda part: part.start):
            if at < leaving.start:
                yield range(at, leaving.start), False
            yield leaving, True
            at = leaving.stop
        if at < used.stop:
            yield range(at, used.stop), False


def whole_pages(part: range) -> range:
    """Return the bytes of the pages that are completely in a range."""
    # A page that is partly in another range cannot be evicted alone.
    first, end = -(-part.start // mmap.PAGESIZE), part.stop // mmap.PAGESIZE
    return range(first * mmap.PAGESIZE, max(first, end) * mmap.PAGESIZE)


def least_bytes(plan: Plan, own: Own = None) -> int:
    """Minimum memory of a store: ranges that are never evicted, and the working set."""
    whole = store_bytes(plan, own)
    fixed = whole - sum(map(len, _regions(plan, own)))
    updated = (_state_bytes(plan, group) for group in groups_of_server(plan, own))
    read = (len(weights_of(plan, group)) for group in groups_of_server(plan, own))
    at_work = sum(nlargest(UPDATED_LOTS, updated)) + sum(nlargest(READ_LOTS, read))
    return min(fixed + at_work, whole)


def shares(owner: Plan, memory_bytes: int, shards: StoreShards) -> list[int]:
    """Return the share of the memory for each MemoryX task: its minimum, and of the rest by its
    size.

    Raises: CsrunError if that is less than the working set
    """
    owns = [shards.own(owner, server) for server in range(shards.servers)]
    least = [least_bytes(owner, own) for own in owns]
    if memory_bytes < sum(least):
        raise _too_little(owner, sum(least), memory_bytes)
    wanted = [store_bytes(owner, own) - needed for own, needed in zip(owns, least, strict=True)]
    more = min(memory_bytes - sum(least), sum(wanted))
    whole = max(sum(wanted), 1)
    return [needed + more * want // whole for needed, want in zip(least, wanted, strict=True)]


def store_bytes(plan: Plan, own: Own = None) -> int:
    """Return the size of a store with memory for these groups."""
    return sum(map(len, ranges_of_server(plan, own)))


def ranges_of_server(plan: Plan, own: Own = None) -> list[range]:
    """Return the ranges of a store in memory for these groups, the step numbers and losses."""
    found = [part for group in groups_of_server(plan, own) for part in state_of(plan, group)]
    for placed in (of_system(plan, system) for system in range(plan.systems)):
        for group in groups_of_server(plan, own):
            if (offset := gradients_offset(placed, group)) is not None:
                found.append(_at(offset, gradient_bytes(plan, group)))
    for start in (plan.store.numbers_offset, plan.store.losses_offset):
        if start is not None:  # both follow the data of all groups
            found.append(range(start, plan.store.nbytes))
    return list(_merged(sorted(found, key=lambda part: part.start)))


def _merged(parts: Iterable[range]) -> Iterator[range]:
    start = stop = 0
    for part in parts:
        if part.start > stop:
            if stop > start:
                yield range(start, stop)
            start = part.start
        stop = max(stop, part.stop)
    if stop > start:
        yield range(start, stop)


def _too_little(plan: Plan, least: int, got: int) -> CsrunError:
    return CsrunError(
        f"runconfig.weight_store_memory must be at least {least:,} bytes for this model (its "
        f"largest group has {_largest(plan):,}), got {got:,}"
    )


def weights_of(plan: Plan, group: Group) -> range:
    """Return a group's weights as the wafer reads them, as ranges of the store."""
    words = plan.store.words_offset
    if words is None:
        return _masters_of(plan, group)
    return _at(words + group.offset_bytes // 2, group.nbytes // 2)


def _masters_of(plan: Plan, group: Group) -> range:
    return _at(plan.store.weights_offset + group.offset_bytes, group.nbytes)


def state_of(plan: Plan, group: Group) -> list[range]:
    """Return the ranges of a group that an update reads and writes, besides resident gradients."""
    slots = [_at(slot.offset_bytes + group.offset_bytes, group.nbytes) for slot in plan.store.slots]
    weights = [weights_of(plan, group)]
    if plan.store.words_offset is not None:
        weights.append(_masters_of(plan, group))
    return [*weights, *slots, *spilled_gradients(plan, group)]


def spilled_gradients(plan: Plan, group: Group) -> list[range]:
    """Return a group's gradients that wait for others of the step, and may be evicted."""
    offset = gradients_offset(plan, group)
    return [] if offset is None or plan.has_window else [_at(offset, gradient_bytes(plan, group))]


def _at(start: int, nbytes: int) -> range:
    return range(start, start + nbytes)


def _regions(plan: Plan, own: Own = None) -> list[range]:
    """Return the regions with a part for each group, except a gradient window; weights come
    first.
    """
    of_groups = [state_of(plan, group) for group in groups_of_server(plan, own)]
    regions = ([p for p in parts if p is not None] for parts in zip_longest(*of_groups))
    return [range(min(p.start for p in ps), max(p.stop for p in ps)) for ps in regions]


def _state_bytes(plan: Plan, group: Group) -> int:
    return sum(map(len, state_of(plan, group)))


def _largest(plan: Plan) -> int:
    return max(chain((_state_bytes(plan, group) for group in plan.groups), (0,)))
