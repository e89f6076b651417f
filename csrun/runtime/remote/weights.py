"""Weights of a MemoryX on another machine, received into the wafer's slots."""

import mmap
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import isfinite

import numpy as np

from csrun.executable import Plan, StepState
from csrun.executable.arrays import Array, Bytes
from csrun.executable.plan import PREFETCH_BYTES
from csrun.executable.program_functions import total
from csrun.executable.store_places import gradient_block, gradient_bytes, gradients_offset
from csrun.runtime.remote.store import NUMBER, SETTLED, StoreLink, StoreRequest
from csrun.runtime.step.gradient_places import gradients_below, measuring
from csrun.runtime.step.weights import PrefetchQueue, SlotResidency, slot_views
from csrun.runtime.store.store_mailbox import squares_of
from csrun.runtime.wire.run_time_clock import awake_s
from csrun.runtime.wire.shared import Waiter


class GradientMemory:
    """Block with the layout of the store in which the wafer writes its gradients.

    A page uses memory from its first write until it is given back.
    Shapes: bytes uint8[nbytes]
    """

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes: Bytes = np.frombuffer(self._map, np.uint8, nbytes)

    def free_pages(self, offset: int, nbytes: int) -> None:
        """Free the memory of these bytes, as far as they are whole pages."""
        first, end = -(-offset // mmap.PAGESIZE), (offset + nbytes) // mmap.PAGESIZE
        if end > first:
            start, length = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, length)


class RemoteMemoryxLink:
    """Wafer's end of the connection to one MemoryX task, for one program.

    arrived, sent: the link's counters.
    coming: requested groups, in order; None for another reply.
    sending: groups whose gradients may not have been sent yet.

    The time that a checkpoint delayed a wait is reported with the next reply; gradients, which
    could not be sent meanwhile, have no reply.
    """

    def __init__(self, link: StoreLink, arrived: Waiter, sent: Waiter) -> None:
        self.link = link
        self._arrived, self._sent = arrived, sent
        self.coming: deque[int | None] = deque()
        self.sending: deque[int] = deque()
        self._reply = np.empty_like(SETTLED)
        self._reported_s = self._waited_s = 0.0  # time reported before, and time waited since

    def request(
        self,
        order: StoreRequest,
        reply: Array | None = None,
        number: bytes = b"",
        step: int = 0,
    ) -> None:
        """Send a request with a reply; replies arrive in order."""
        self.link.request(order, 0, self._reply if reply is None else reply, number, step)
        self.coming.append(None)

    def take(self) -> tuple[int | None, float]:
        """Return the next reply, waiting for it.

        Also returns how long at most a checkpoint delayed it since the reply before.
        """
        self._wait(self._arrived)
        reported_s = self.link.held_s
        held_s = min(reported_s - self._reported_s, self._waited_s)
        self._reported_s, self._waited_s = reported_s, 0.0
        return self.coming.popleft(), held_s

    def take_sent(self) -> None:
        """Wait until the next gradients have been sent."""
        self._wait(self._sent)
        self.sending.popleft()

    def _wait(self, counter: Waiter) -> None:
        began = awake_s()
        counter.take()
        self._waited_s += awake_s() - began
        self.link.check()


class RemoteLossReduction:
    """Loss of a step over several systems: SwarmX adds the parts for MemoryX, which replies with
    the sum.

    Same interface as `LossReduction`; a wafer sends its part before it delivers gradients.
    """

    def __init__(self, ends: Sequence[RemoteMemoryxLink]) -> None:
        self._ends = ends
        self._sums = [np.zeros(1, ">f8") for _ in ends]

    def put(self, system: int, loss_sum: float) -> None:
        """Send a system's part of the loss."""
        for end, reply in zip(self._ends, self._sums, strict=True):
            end.request(StoreRequest.LOSS, reply, NUMBER.pack(loss_sum))

    @property
    def is_finite(self) -> bool:
        """Return whether the sum is finite, waiting for it."""
        return isfinite(self._sums[0][0])


class RemoteWeights:
    """Weights with the interface of `StreamedWeights`, over connections to all MemoryX tasks.

    The next groups are fetched while a visit is computed, and those of the first visit again when
    the step's last gradients have been sent: MemoryX replies in the order of the requests, so they
    include the step's update.
    """

    def __init__(
        self,
        plan: Plan,
        arena: Bytes,
        memory: GradientMemory,
        ends: Sequence[RemoteMemoryxLink],
        server_of: Sequence[int],
        program: int = 0,
    ) -> None:
        self._program = program
        self._plan = plan
        self._memory = memory
        self._ends = ends
        self._end_of = [ends[server] for server in server_of]
        self._measuring = measuring(plan, ends, server_of)
        self._squares = [squares_of(plan) for _ in self._measuring]
        self._needs = [visit.groups for visit in plan.order]
        self._last = plan.deliveries[-1:]
        self._slots = slot_views(plan, arena)
        self._gradients = [gradient_block(plan, group, memory.bytes) for group in plan.groups]
        self._overwrites = gradients_below(plan)
        self._prefetch = PrefetchQueue(plan)
        self._residency = SlotResidency(plan)
        self._is_settled = True
        self._scale = np.ones(1, ">f8")
        self.reduction = RemoteLossReduction(ends)
        self.held_s = 0.0

    def enter(self, visit: int) -> None:
        """Wait for the groups' newest weights, and fetch the next ones as far as slots are free.

        Also waits until gradients that the visit overwrites have been sent.
        """
        needed = self._needs[visit]
        for group in needed:
            self._load(group)
        for group in self._overwrites[visit]:
            while group in self._end_of[group].sending:
                self._end_of[group].take_sent()
        self._prefetch.enter(visit)
        while self._prefetch.waiting:
            self._fetch(self._prefetch.waiting.popleft())

    def deliver(self, group: int, step: StepState) -> None:
        """Send the group's gradients to MemoryX."""
        self._is_settled = False
        self._residency.held.discard(group)
        gradients, end = self._gradients[group], self._end_of[group]
        assert gradients is not None, "what is delivered has gradients"
        end.sending.append(group)
        sent = partial(self._forget_gradients, group)
        end.link.send_gradients(group, step.index, gradients, sent)
        if (group,) == self._last:
            self._exchange()
            # Now, not at the beginning of the next step: they are transferred while the step ends.
            for first in self._needs[0]:
                self._fetch(first)

    def loss_scale(self, step: int) -> float:
        """Return the loss scale of a step; MemoryX replies after the update of the previous
        step.
        """
        end = self._end_of[self._plan.deliveries[0]]
        end.request(StoreRequest.SCALE, self._scale, step=step)
        self._take_all(end)
        return float(self._scale[0])

    def settle(self) -> None:
        """Wait until MemoryX has applied all gradients."""
        if self._is_settled:
            return
        for end in self._ends:
            end.request(StoreRequest.SETTLE)
        for end in self._ends:
            self._take_all(end)
            while end.sending:
                end.take_sent()
        self._is_settled = True

    def resume(self) -> None:
        """Announce to MemoryX the program of the next requests."""
        for end in self._ends:
            end.link.take_turn(self._program)

    def leave(self) -> None:
        """Release the slots for another program."""
        for end in self._ends:
            self._take_all(end)
        self._residency.held.clear()

    def await_loss_sum(self) -> None:
        """Wait until MemoryX has replied with the sum of the step's loss."""
        for end in self._ends:
            while None in end.coming:
                self._take(end)

    def _exchange(self) -> None:
        """Exchange the tasks' sums of squares; no update happens before."""
        for end, squares in zip(self._measuring, self._squares, strict=True):
            end.request(StoreRequest.SQUARES, squares)
        for end in self._measuring:
            self._take_all(end)
        whole = total(square for each in self._squares for square in each)
        for end in self._measuring:
            end.link.send_total(whole)

    def _forget_gradients(self, group: int) -> None:
        """Free the memory of a large group's gradients, and of any group that has its own memory.

        For a small group, allocating the memory again would cost more than it saves.
        """
        place = self._plan.groups[group]
        offset = gradients_offset(self._plan, place)
        has_own_memory = not self._plan.has_window
        nbytes = gradient_bytes(self._plan, place)
        if offset is not None and (has_own_memory or nbytes >= PREFETCH_BYTES):
            self._memory.free_pages(offset, nbytes)

    def _load(self, group: int) -> None:
        self._fetch(group)
        while group not in self._residency.held:
            self._take(self._end_of[group])

    def _fetch(self, group: int) -> None:
        """Request a group that is neither resident nor requested."""
        end = self._end_of[group]
        if group in self._residency.held or group in end.coming:
            return
        for other in self._ends:  # replies of one connection arrive in order
            coming = (each for each in other.coming if each is not None)
            if other is not end and self._residency.overlaps(group, coming):
                self._take_all(other)
        self._residency.clear(group)
        end.coming.append(group)
        end.link.request(StoreRequest.FETCH, group, self._slots[group])

    def _take_all(self, end: RemoteMemoryxLink) -> None:
        while end.coming:
            self._take(end)

    def _take(self, end: RemoteMemoryxLink) -> None:
        group, held_s = end.take()
        self.held_s += held_s
        if group is not None:
            self._residency.mark_resident(group)
