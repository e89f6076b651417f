"""Weights: where a wafer has them, and what becomes of its gradients."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from csrun.executable import Plan, StepState
from csrun.executable.ahead import fetches, lie_over
from csrun.executable.arrays import Bytes
from csrun.executable.plan import PREFETCH_BYTES
from csrun.executable.program_functions import total
from csrun.executable.stored_groups import Group
from csrun.runtime.step.gradient_places import added_before, gradients_below, measuring
from csrun.runtime.step.scale_rows import ScaleRows
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.store_mailbox import MemoryxEnd


class Weights(Protocol):
    """Hooks of the step loop around each visit."""

    @property
    def held_s(self) -> float:
        """Seconds that steps have waited so far for a checkpoint that pauses updates."""

    def enter(self, visit: int) -> None:
        """Have the weights of the visit's groups where its function reads them."""

    def deliver(self, group: int, step: StepState) -> None:
        """The group's gradients of this step are complete in the store."""

    def loss_scale(self, step: int) -> float:
        """Factor of the loss of the step that begins."""

    def settle(self) -> None:
        """Wait until every delivered gradient has become an update."""

    def leave(self) -> None:
        """Another program runs next: what the arena holds of the weights will be there no more."""

    def resume(self) -> None:
        """Resume: it runs next, and is not the one that has run last, if any has."""


class Turns:
    """Turn of the programs of a run: the arena holds weights of the one that has run last."""

    def __init__(self) -> None:
        self._last: Weights | None = None

    def take(self, weights: Weights) -> bool:
        """The program with these runs next: whether that is another one than before."""
        if self._last is weights:
            return False
        if self._last is not None:
            self._last.leave()
        weights.resume()  # the first one to run, too: it need not be the first one loaded
        self._last = weights
        return True

    def forget(self) -> None:
        """The store was written: what the arena has of its weights is old."""
        if self._last is not None:
            self._last.leave()
            self._last = None

    def end(self, weights: Weights) -> None:
        """The program with these does not run again."""
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
        """The weights are always there."""

    def deliver(self, group: int, step: StepState) -> None:
        self._updates.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        return self._updates.loss_scale(step)

    def settle(self) -> None:
        """Updates are made as gradients come."""

    def leave(self) -> None:
        """Others may write the weights."""
        self._sent.outdate()

    def resume(self) -> None:
        """Have the weights be read as they are now."""
        self._sent.refresh_all()


def slot_views(plan: Plan, arena: Bytes) -> list[Bytes]:
    """For each group, the bytes of its arena slot."""

    def slot_of(group: Group) -> Bytes:
        offset = group.slot_offset_bytes
        if offset is None:
            raise ValueError(f"group {group.index} has no weight slot: not a streaming plan")
        return arena[offset : offset + group.sent_bytes]

    return [slot_of(group) for group in plan.groups]


def slot_copies(plan: Plan, arena: Bytes, sent: SentWeights) -> list[Callable[[], None]]:
    """For each group, a function that copies its weights from the store into its arena slot."""

    def copy(group: int, slot: Bytes) -> None:
        for part in sent.parts(group):
            slot[: len(part)] = part
            slot = slot[len(part) :]

    return [partial(copy, group, slot) for group, slot in enumerate(slot_views(plan, arena))]


class Places:
    """The slots of the wafer: which groups are there, and which lie over each other."""

    def __init__(self, plan: Plan) -> None:
        self._groups = plan.groups
        self.held: set[int] = set()

    def meet(self, group: int, others: Iterable[int]) -> bool:
        """Return whether a group lies over one of the others."""
        return any(lie_over(self._groups[group], self._groups[other]) for other in others)

    def clear(self, group: int) -> None:
        """Drop what lies in the slot of a coming group, and the group itself."""
        self.held = {other for other in self.held if not self.meet(group, [other])}

    def has_come(self, group: int) -> None:
        """The group is there, and nothing that it lies over."""
        self.clear(group)
        self.held.add(group)


class Slots:
    """The wafer's weight slots: the groups of a visit and, next to them, those that come next.

    `load` copies only when the group's weights of the step are not there yet, as the last ones of
    the forward pass are in the backward pass. `prefetch` copies a group in a thread of its own, one
    after the other, while the groups of a visit are computed on.
    """

    def __init__(self, plan: Plan, arena: Bytes, sent: SentWeights) -> None:
        self._copies, self._sent = slot_copies(plan, arena, sent), sent
        self._places = Places(plan)
        self._thread = ThreadPoolExecutor(1, "prefetch")  # it starts with what comes first
        self._coming: deque[tuple[int, Future[None]]] = deque()

    def load(self, group: int) -> None:
        """Have the group's weights in its slot."""
        if self._coming:
            self._make_way(group)
        if group not in self._places.held:
            self._copies[group]()
            self._places.has_come(group)

    def prefetch(self, group: int) -> None:
        """Begin to load a group that is neither there nor coming."""
        if group not in self._places.held and all(group != coming for coming, _ in self._coming):
            self._make_way(group)
            self._places.clear(group)
            self._sent.refresh(group)  # here, where the pages of the store are handled
            self._coming.append((group, self._thread.submit(self._copies[group])))

    def close(self) -> None:
        self._thread.shutdown()

    def outdate(self, group: int) -> None:
        """The group's weights have changed, or will."""
        self._places.held.discard(group)

    def forget(self) -> None:
        """Nothing is there any more, nor comes; others may write the weights."""
        while self._coming:
            self._await_first()
        self._places.held.clear()
        self._sent.outdate()

    def _make_way(self, group: int) -> None:
        """Wait until the group has come, if it does, and nothing comes where it lies."""
        while self._places.meet(group, (coming for coming, _ in self._coming)):
            self._await_first()

    def _await_first(self) -> None:
        coming, copied = self._coming.popleft()
        copied.result()
        self._places.has_come(coming)


class Ahead:
    """The groups that are to come ahead of their visits, in the order in which they are used.

    least_bytes: of a group that comes ahead.
    """

    def __init__(self, plan: Plan, least_bytes: int = 0) -> None:
        self._fetches = fetches(plan.groups, [visit.groups for visit in plan.order], least_bytes)
        self.waiting: deque[int] = deque()

    def enter(self, visit: int) -> None:
        """Queue the groups whose slots are free from this visit on."""
        if not visit:
            self.waiting.clear()  # of a step that was left
        self.waiting.extend(self._fetches[visit])


class StreamedWeights:
    """Weights of MemoryX, streamed a group at a time; gradients stream back.

    ends: of its tasks; server_of: for each group, the task that has it. system: the wafer's place
    among the systems, of which the first adds up what the tasks measure. scales: of
    the task that has the first group to be delivered.
    """

    def __init__(
        self,
        plan: Plan,
        slots: Slots,
        ends: Sequence[MemoryxEnd],
        server_of: Sequence[int],
        system: int = 0,
        scales: ScaleRows | None = None,
    ) -> None:
        self._scales, self._first = scales, next(iter(plan.deliveries), 0)
        self._needs = [visit.groups for visit in plan.order]
        completes = [() if plan.accumulates else visit.completes for visit in plan.order]
        self._completes = list(map(frozenset, completes))  # whose update follows in any case
        self._added = added_before(plan)
        self._overwrites = gradients_below(plan, server_of)
        self._ahead = Ahead(plan, PREFETCH_BYTES)
        self._slots, self._ends = slots, ends
        self._end_of = [ends[server] for server in server_of]
        self._outdated: set[int] = set()  # delivered groups whose update has not been seen
        self._measuring = [] if system else measuring(plan, ends, server_of)
        self._last = plan.deliveries[-1:]
        self.held_s = 0.0

    def enter(self, visit: int) -> None:
        """Wait until the groups' last updates are in the store, then load them.

        And until MemoryX is done with the gradients that the visit writes over. Those that follow
        begin to come, as far as there is place and their updates need not be waited for.
        """
        needed = self._needs[visit]
        self._ahead.enter(visit)
        # The wait that comes is time in which others can be copied.
        if not self._outdated.isdisjoint(needed):
            self._fetch_ahead()
        for group in needed:
            self.await_update(group)
            self._slots.load(group)
            pages = self._end_of[group].pages
            pages.has_read(group, is_updated_next=group in self._completes[visit])
        for group in self._added[visit]:
            self._end_of[group].pages.has_measured(group)
        for group in self._overwrites[visit]:
            self.await_update(group)
        # The disk reads them while this visit computes.
        for group in self._needs[visit + 1] if visit + 1 < len(self._needs) else ():
            self._end_of[group].pages.fetch_weights(group)
        self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Begin to load what may come; what was not updated yet lets nothing pass."""
        waiting = self._ahead.waiting
        for end in self._ends if waiting else ():
            while end.pending and end.updates.ready():
                self._take(end)
        while waiting and waiting[0] not in self._outdated:
            group = waiting.popleft()
            self._end_of[group].pages.fetch_weights(group)
            self._slots.prefetch(group)

    def deliver(self, group: int, step: StepState) -> None:
        """Hand the group's gradients to MemoryX."""
        end = self._end_of[group]
        end.pages.has_delivered(group)
        self._slots.outdate(group)
        self._outdated.add(group)
        end.deliver(group, step.index)
        # The norm is over the gradients of all tasks: each waits for the others' squares.
        if (group,) == self._last and self._measuring:
            self._exchange()

    def loss_scale(self, step: int) -> float:
        """Wait until the step before has decided on it: before its first update."""
        if self._scales is None:
            return 1.0
        self.await_update(self._first)
        return self._scales.before(step).scale

    def settle(self) -> None:
        """Wait for the updates of all delivered groups."""
        for group in tuple(self._outdated):
            self.await_update(group)

    def leave(self) -> None:
        """The slots are another program's from now on."""
        self._slots.forget()

    def resume(self) -> None:
        """The slots are empty: another one has left them, or none was there."""

    def _exchange(self) -> None:
        """Give each task the sum of what all have measured: nothing is updated before."""
        for end in self._measuring:
            end.gradients.raise_by()
        for end in self._measuring:
            end.updates.take()
        squares = total(square for end in self._measuring for square in end.notes.squares)
        for end in self._measuring:
            end.notes.total[0] = squares
            end.gradients.raise_by()

    def await_update(self, group: int) -> None:
        """Wait until MemoryX is done with the group, if it has been delivered."""
        while group in self._outdated:
            self._take(self._end_of[group])

    def _take(self, end: MemoryxEnd) -> None:
        group, held_s = end.take()
        self._outdated.discard(group)
        self.held_s += held_s


class InProcessStreamedWeights:
    """Weight streaming inside one process: the same slots, MemoryX's part at once."""

    def __init__(self, plan: Plan, slots: Slots, updates: Updates) -> None:
        self._needs = [visit.groups for visit in plan.order]
        self._slots = slots
        self._updates = updates

    @property
    def held_s(self) -> float:
        return self._updates.held_s

    def enter(self, visit: int) -> None:
        """Load the groups that are not there."""
        for group in self._needs[visit]:
            self._slots.load(group)

    def deliver(self, group: int, step: StepState) -> None:
        """Give the group's gradients to the learning algorithm."""
        self._slots.outdate(group)
        self._updates.deliver(group, step)

    def loss_scale(self, step: int) -> float:
        return self._updates.loss_scale(step)

    def settle(self) -> None:
        """Updates are made as gradients come."""

    def leave(self) -> None:
        """The slots are another program's from now on."""
        self._slots.forget()

    def resume(self) -> None:
        """The slots are empty: another one has left them, or none was there."""
