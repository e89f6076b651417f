"""Weights of a MemoryX on another machine: the wafer's slots, filled over the wire."""

import mmap
from collections import deque

import numpy as np

from csrun.executable import Plan, Step, flat_views
from csrun.executable.bind import Bytes, gradients_offset
from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.remote.store import SETTLED, Order, StoreLink
from csrun.runtime.step.weights import Ahead, Places, gradients_below, slot_views
from csrun.runtime.wire.shared import Waiter


class GradientMemory:
    """A block laid out as the store, of which the wafer writes the gradients alone.

    A page takes memory from its first write until it is given back.
    Shapes: bytes uint8[nbytes]
    """

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes: Bytes = np.frombuffer(self._map, np.uint8, nbytes)

    def give_back(self, offset: int, nbytes: int) -> None:
        """Forget what these bytes hold, as far as they are whole pages."""
        first, end = -(-offset // mmap.PAGESIZE), (offset + nbytes) // mmap.PAGESIZE
        if end > first:
            start, length = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, length)


class RemoteWeights:
    """As `StreamedWeights`, over a `StoreLink`.

    What follows is fetched while a visit is computed, and the first one's groups again when the
    step's last gradients have left: MemoryX answers in the order of the wafer's orders, so that
    they come with the step's update.
    """

    def __init__(
        self,
        plan: Plan,
        arena: Bytes,
        memory: GradientMemory,
        link: StoreLink,
        arrived: Waiter,
        sent: Waiter,
        program: int = 0,
    ) -> None:
        self._program = program
        self._plan = plan
        self._memory = memory
        self._link = link
        self._needs = [visit.groups for visit in plan.order]
        self._last = plan.deliveries[-1:]
        self._slots = slot_views(plan, arena)
        self._flat = flat_views(plan, memory.bytes)
        self._overwrites = gradients_below(plan)
        self._ahead = Ahead(plan)
        self._sent = sent  # as above
        self._sending: deque[int] = deque()  # groups whose gradients are not known to have left
        self._waiter = arrived  # of the link's counter
        self._places = Places(plan)
        self._coming: deque[int | None] = deque()  # None: the answer to SETTLE
        self._answer = np.empty_like(SETTLED)
        self._is_settled = True

    def enter(self, visit: int) -> None:
        """Have the groups' newest weights, and fetch those that follow, as far as there is place.

        And wait until the gradients that the visit writes over have been sent.
        """
        needed = self._needs[visit]
        for group in needed:
            self._load(group)
        for group in self._overwrites[visit]:
            while group in self._sending:
                self._take_sent()
        self._ahead.enter(visit)
        while self._ahead.waiting:
            self._fetch(self._ahead.waiting.popleft())

    def deliver(self, group: int, step: Step) -> None:
        """Send the group's gradients to MemoryX."""
        self._is_settled = False
        self._places.held.discard(group)
        gradients = self._flat[f"gradients/{group}"]
        self._sending.append(group)
        self._link.send_gradients(group, gradients, lambda: self._forget_gradients(group))
        if (group,) == self._last:
            for first in self._needs[0]:
                self._fetch(first)

    def settle(self) -> None:
        """Wait until MemoryX has applied all gradients."""
        if self._is_settled:
            return
        self._link.order(Order.SETTLE)
        self._link.receive(self._answer)
        self._coming.append(None)
        while self._coming:
            self._take()
        while self._sending:
            self._take_sent()
        self._is_settled = True

    def resume(self) -> None:
        """Tell MemoryX which program's groups the next orders are about."""
        self._link.order(Order.TURN, self._program)

    def leave(self) -> None:
        """The slots are another program's from now on."""
        while self._coming:
            self._take()
        self._places.held.clear()

    def _forget_gradients(self, group: int) -> None:
        """A large group's are not kept, nor any where each has a place of its own.

        A small group's would cost more to make room for again than they take.
        """
        place = self._plan.groups[group]
        offset = gradients_offset(self._plan, place)
        is_apart = not self._plan.has_window
        if offset is not None and (is_apart or place.nbytes >= PREFETCH_BYTES):
            self._memory.give_back(offset, place.nbytes)

    def _load(self, group: int) -> None:
        self._fetch(group)
        while group not in self._places.held:
            self._take()

    def _fetch(self, group: int) -> None:
        """Ask for a group that is neither here nor coming."""
        if group in self._places.held or group in self._coming:
            return
        self._places.clear(group)
        self._coming.append(group)
        self._link.order(Order.FETCH, group)
        self._link.receive(self._slots[group])

    def _take_sent(self) -> None:
        self._sent.take()
        self._link.check()
        self._sending.popleft()

    def _take(self) -> None:
        self._waiter.take()
        self._link.check()
        if (group := self._coming.popleft()) is not None:
            self._places.has_come(group)
