"""Weights on a wafer, and delivery of its gradients, for each kind of store."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise, starmap
from typing import Protocol

from csrun.executable import Plan, StepState
from csrun.executable.arrays import Bytes
from csrun.executable.plan import PREFETCH_BYTES
from csrun.executable.prefetch_schedule import prefetch_points, slots_overlap
from csrun.executable.program_functions import total
from csrun.executable.stored_groups import Group
from csrun.runtime.step.gradient_places import added_before, gradients_below, measuring
from csrun.runtime.step.scale_rows import ScaleRows
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.pages import GroupPages
from csrun.runtime.store.store_mailbox import MemoryxLink


class Weights(Protocol):
    """Hooks of the step loop around each visit."""

    @property
    def held_s(self) -> float:
        """Seconds for which steps have waited so far for a checkpoint that holds back updates."""

    def enter(self, visit: int) -> None:
        """Make the weights of the visit's groups available to its function."""

    def deliver(self, group: int, step: StepState) -> None:
        """Deliver the group's gradients of this step, which are complete in the store."""

    def loss_scale(self, step: int) -> float:
        """Return the loss scale of the step that begins."""

    def settle(self) -> None:
        """Wait until every delivered gradient has been applied."""

    def leave(self) -> None:
        """Release the weights: another program runs next and overwrites those in the arena."""

    def resume(self) -> None:
        """Resume a program that was not the last one to run, or is the first."""


class ArenaOwner:
    """Tracks which program's weights are in the arena: those of the last one that ran."""

    def __init__(self) -> None:
        self._last: Weights | None = None

    def take(self, weights: Weights) -> bool:
        """Set the program that runs next; return whether it is another one than before."""
        if self._last is weights:
            return False
        if self._last is not None:
            self._last.leave()
        weights.resume()  # also for the first one that runs, which need not be the first one loaded
        self._last = weights
        return True

    def forget(self) -> None:
        """Note that the store was written, so the weights in the arena are stale."""
        if self._last is not None:
            self._last.leave()
            self._last = None

    def end(self, weights: Weights) -> None:
        """Note that a program does not run again."""
        if self._last is weights:
            self.forget()


class ResidentWeights:
    """Weights and optimizer state on the wafer itself: pipelined mode and the CPU run."""

    def __init__(self, updates: Updates, sent: SentWeights) -> None:
        self._updates, self._sent = updates, sent

    @property
    def held_s(self) -> float:
        return self._updates.held_s

    def enter(self, visit: int) -> None:
        """Do nothing: the weights are always resident."""

    def deliver(self, group: int, step: StepState) -> None:
        self._updates.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        return self._updates.loss_scale(step)

    def settle(self) -> None:
        """Do nothing: updates are made as gradients are delivered."""

    def leave(self) -> None:
        """Release the weights, which others may write."""
        self._sent.invalidate()

    def resume(self) -> None:
        """Update the words of the weights, which others may have written."""
        self._sent.refresh_all()


def slot_views(plan: Plan, arena: Bytes) -> list[Bytes]:
    """Return the arena slot of each group, as bytes."""

    def slot_of(group: Group) -> Bytes:
        offset = group.slot_offset_bytes
        if offset is None:
            raise ValueError(f"group {group.index} has no weight slot: not a streaming plan")
        return arena[offset : offset + group.sent_bytes]

    return [slot_of(group) for group in plan.groups]


def slot_copies(plan: Plan, arena: Bytes, sent: SentWeights) -> list[Callable[[], None]]:
    """Return for each group a function that copies its weights from the store to its slot."""
    return [sent.copy_of(group, slot) for group, slot in enumerate(slot_views(plan, arena))]


class SlotResidency:
    """State of the wafer's slots: which groups are resident, and which slots overlap."""

    def __init__(self, plan: Plan) -> None:
        self._groups = plan.groups
        self.held: set[int] = set()
        slots = [group for group in plan.groups if group.sent_bytes]
        slots.sort(key=lambda group: group.slot_offset_bytes or 0)
        self._are_disjoint = not any(starmap(slots_overlap, pairwise(slots)))

    def overlaps(self, group: int, others: Iterable[int]) -> bool:
        """Return whether a group's slot overlaps with those of the others."""
        if self._are_disjoint:
            return group in others
        return any(slots_overlap(self._groups[group], self._groups[other]) for other in others)

    def clear(self, group: int) -> None:
        """Drop the groups whose slots overlap with that of a coming group, and the group itself."""
        if self._are_disjoint:
            self.held.discard(group)
            return
        self.held = {other for other in self.held if not self.overlaps(group, [other])}

    def mark_resident(self, group: int) -> None:
        """Note that the group is resident, and no group that overlaps with it."""
        self.clear(group)
        self.held.add(group)


class Slots:
    """Weight slots of the wafer: the groups of a visit and prefetched ones.

    `load` copies a group only if its weights of this step are not resident; the last groups of the
    forward pass still are in the backward pass. `prefetch` copies groups in a thread, one after the
    other, during the computation of a visit.
    """

    def __init__(self, plan: Plan, arena: Bytes, sent: SentWeights) -> None:
        self._copies, self._sent = slot_copies(plan, arena, sent), sent
        self._residency = SlotResidency(plan)
        self._thread = ThreadPoolExecutor(1, "prefetch")  # starts with the first prefetch
        self._coming: deque[tuple[int, Future[None]]] = deque()

    def has(self, groups: Iterable[int]) -> bool:
        """Return whether the weights of groups are resident."""
        return self._residency.held.issuperset(groups)

    def load(self, group: int) -> None:
        """Load the group's weights into its slot."""
        if self._coming:
            self._await_free_slot(group)
        if group not in self._residency.held:
            self._copies[group]()
            self._residency.mark_resident(group)

    def prefetch(self, group: int) -> None:
        """Start to load a group that is neither resident nor coming."""
        if group not in self._residency.held and all(group != coming for coming, _ in self._coming):
            self._await_free_slot(group)
            self._residency.clear(group)
            self._sent.refresh(group)  # in this thread, which handles the pages of the store
            self._coming.append((group, self._thread.submit(self._copies[group])))

    def close(self) -> None:
        self._thread.shutdown()

    def invalidate(self, group: int) -> None:
        """Mark the group's weights as stale: they have changed, or will."""
        self._residency.held.discard(group)

    def forget(self) -> None:
        """Mark all weights as not resident; others may write them."""
        while self._coming:
            self._await_first()
        self._residency.held.clear()
        self._sent.invalidate()

    def _await_free_slot(self, group: int) -> None:
        """Wait until the group has arrived, if it is coming, and nothing arrives in an overlapping
        slot.
        """
        while self._residency.overlaps(group, (coming for coming, _ in self._coming)):
            self._await_first()

    def _await_first(self) -> None:
        coming, copied = self._coming.popleft()
        copied.result()
        self._residency.mark_resident(coming)


class PrefetchQueue:
    """Groups to prefetch, in order of use.

    least_bytes: size below which a group is not prefetched.
    """

    def __init__(self, plan: Plan, least_bytes: int = 0) -> None:
        self._fetches = prefetch_points(
            plan.groups, [visit.groups for visit in plan.order], least_bytes
        )
        self.waiting: deque[int] = deque()

    def enter(self, visit: int) -> None:
        """Queue the groups whose slots are free from this visit on."""
        if not visit:
            self.waiting.clear()  # of a step that was abandoned
        self.waiting.extend(self._fetches[visit])


class StreamedWeights:
    """Weights of MemoryX, streamed group by group; gradients are sent back.

    ends: shared memory with each task.
    server_of: for each group, its task.
    system: index of this wafer's system; the first one adds the tasks' sums of squares.
    scales: loss scales of the task with the first delivered group.
    """

    def __init__(
        self,
        plan: Plan,
        slots: Slots,
        ends: Sequence[MemoryxLink],
        server_of: Sequence[int],
        system: int = 0,
        scales: ScaleRows | None = None,
    ) -> None:
        self._scales, self._first = scales, next(iter(plan.deliveries), 0)
        self._needs = [visit.groups for visit in plan.order]
        completes = [() if plan.accumulates else visit.completes for visit in plan.order]
        self._completes = list(map(frozenset, completes))  # its update follows in any case
        self._added = added_before(plan)
        self._overwrites = gradients_below(plan, server_of)
        pairs = zip(self._needs, self._overwrites, strict=True)
        self._used = [frozenset((*needed, *overwritten)) for needed, overwritten in pairs]
        self._prefetch = PrefetchQueue(plan, PREFETCH_BYTES)
        self._slots, self._ends = slots, ends
        self._are_in_memory = all(type(end.pages) is GroupPages for end in ends)
        self._end_of = [ends[server] for server in server_of]
        self._outdated: set[int] = set()  # delivered groups whose update has not been confirmed
        self._measuring = [] if system else measuring(plan, ends, server_of)
        self._last = plan.deliveries[-1:]
        self.held_s = 0.0

    def enter(self, visit: int) -> None:
        """Wait until the groups' last updates are in the store, then load them.

        Also waits until MemoryX has read the gradients that the visit overwrites. The next groups
        are prefetched as far as slots are free and their updates are done.
        """
        needed = self._needs[visit]
        self._prefetch.enter(visit)
        if (
            self._are_in_memory
            and not self._prefetch.waiting
            and self._outdated.isdisjoint(self._used[visit])
            and self._slots.has(needed)
        ):
            return
        # During the wait other groups can be copied.
        if not self._outdated.isdisjoint(needed):
            self._fetch_ahead()
        for group in needed:
            self.await_update(group)
            self._slots.load(group)
            pages = self._end_of[group].pages
            pages.mark_read(group, is_updated_next=group in self._completes[visit])
        for group in self._added[visit]:
            self._end_of[group].pages.mark_measured(group)
        for group in self._overwrites[visit]:
            self.await_update(group)
        # The disk reads them during this visit's computation.
        for group in self._needs[visit + 1] if visit + 1 < len(self._needs) else ():
            self._end_of[group].pages.fetch_weights(group)
        self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Start to load groups ahead; a group without its update blocks those after it."""
        waiting = self._prefetch.waiting
        for end in self._ends if waiting else ():
            while end.pending and end.updates.ready():
                self._take(end)
        while waiting and waiting[0] not in self._outdated:
            group = waiting.popleft()
            self._end_of[group].pages.fetch_weights(group)
            self._slots.prefetch(group)

    def deliver(self, group: int, step: StepState) -> None:
        """Deliver the group's gradients to MemoryX."""
        end = self._end_of[group]
        end.pages.mark_delivered(group)
        self._slots.invalidate(group)
        self._outdated.add(group)
        end.deliver(group, step.index)
        # The norm is over the gradients of all tasks: each waits for the others' squares.
        if (group,) == self._last and self._measuring:
            self._exchange()

    def loss_scale(self, step: int) -> float:
        """Wait until the previous step has determined the scale; return it."""
        if self._scales is None:
            return 1.0
        self.await_update(self._first)
        return self._scales.before(step).scale

    def settle(self) -> None:
        """Wait for the updates of all delivered groups."""
        for group in tuple(self._outdated):
            self.await_update(group)

    def leave(self) -> None:
        """Release the slots for another program."""
        self._slots.forget()

    def resume(self) -> None:
        """Mark the slots as empty: another program used them, or none has run."""

    def _exchange(self) -> None:
        """Exchange the tasks' sums of squares; no update happens before."""
        for end in self._measuring:
            end.gradients.raise_by()
        for end in self._measuring:
            end.updates.take()
        squares = total(square for end in self._measuring for square in end.mailbox.squares)
        for end in self._measuring:
            end.mailbox.total[0] = squares
            end.gradients.raise_by()

    def await_update(self, group: int) -> None:
        """Wait until MemoryX is done with the group, if it has been delivered."""
        while group in self._outdated:
            self._take(self._end_of[group])

    def _take(self, end: MemoryxLink) -> None:
        group, held_s = end.take()
        self._outdated.discard(group)
        self.held_s += held_s


class InProcessStreamedWeights:
    """Weight streaming inside one process: the same slots, with synchronous updates."""

    def __init__(self, plan: Plan, slots: Slots, updates: Updates) -> None:
        self._needs = [visit.groups for visit in plan.order]
        self._slots = slots
        self._updates = updates

    @property
    def held_s(self) -> float:
        return self._updates.held_s

    def enter(self, visit: int) -> None:
        """Load the groups that are not resident."""
        for group in self._needs[visit]:
            self._slots.load(group)

    def deliver(self, group: int, step: StepState) -> None:
        """Apply the group's gradients."""
        self._slots.invalidate(group)
        self._updates.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        return self._updates.loss_scale(step)

    def settle(self) -> None:
        """Do nothing: updates are made as gradients are delivered."""

    def leave(self) -> None:
        """Release the slots for another program."""
        self._slots.forget()

    def resume(self) -> None:
        """Mark the slots as empty: another program used them, or none has run."""
