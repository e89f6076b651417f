"""Weights of a MemoryX on another machine: the wafer's two slots, filled over the wire."""

import mmap
from collections import deque

import numpy as np

from csrun.executable import Plan, Step, flat_views
from csrun.executable.bind import Bytes
from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.remote.store import SETTLED, Order, StoreLink
from csrun.runtime.step.weights import slot_views
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
    """As `StreamedWeights`, over a `StoreLink`: group g goes into slot g mod 2.

    The next group is fetched while one is computed, and group 0 again when its gradients have left:
    MemoryX answers in the order of the wafer's orders, so it comes with the step's update.
    """

    def __init__(
        self,
        plan: Plan,
        arena: Bytes,
        memory: GradientMemory,
        link: StoreLink,
        arrived: Waiter,
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._link = link
        self._slots = slot_views(plan, arena)
        self._flat = flat_views(plan, memory.bytes)
        self._waiter = arrived  # of the link's counter
        self._holds: list[int | None] = [None, None]
        self._coming: deque[int | None] = deque()  # None: the answer to SETTLE
        self._answer = np.empty_like(SETTLED)
        self._is_settled = True

    def acquire(self, group: int) -> None:
        """Have the group's newest weights, and fetch the next one's."""
        self._load(group)
        self._fetch(group + 1)

    def reacquire(self, group: int) -> None:
        """Have the group's weights again, and fetch those of the one before."""
        self._load(group)
        self._fetch(group - 1)

    def deliver(self, group: int, step: Step) -> None:
        """Send the group's gradients to MemoryX."""
        self._is_settled = False
        self._holds[group % 2] = None
        gradients = self._flat[f"gradients/{group}"]
        self._link.send_gradients(group, gradients, lambda: self._forget_gradients(group))
        if group == 0:
            self._fetch(0)

    def settle(self) -> None:
        """Wait until MemoryX has applied all gradients."""
        if self._is_settled:
            return
        self._link.order(Order.SETTLE)
        self._link.receive(self._answer)
        self._coming.append(None)
        while self._coming:
            self._take()
        self._is_settled = True

    def _forget_gradients(self, group: int) -> None:
        """A large group's are not kept; a small one's would cost more to make room for again."""
        place, base = self._plan.groups[group], self._plan.store.gradients_offset
        if place.nbytes >= PREFETCH_BYTES and base is not None:
            self._memory.give_back(base + place.offset_bytes, place.nbytes)

    def _load(self, group: int) -> None:
        self._fetch(group)
        while self._holds[group % 2] != group:
            self._take()

    def _fetch(self, group: int) -> None:
        """Ask for a group that is neither here nor coming, if there is such a group."""
        if not 0 <= group < len(self._slots) or group in self._coming:
            return
        if self._holds[group % 2] != group:
            self._holds[group % 2] = None
            self._coming.append(group)
            self._link.order(Order.FETCH, group)
            self._link.receive(self._slots[group])

    def _take(self) -> None:
        self._waiter.take()
        self._link.check()
        if (group := self._coming.popleft()) is not None:
            self._holds[group % 2] = group
