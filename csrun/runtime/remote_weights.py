"""Weights of a MemoryX on another machine: the wafer's two slots, filled over the wire."""

import mmap
from collections import deque

import numpy as np

from csrun.executable import Plan, Step, flat_views
from csrun.executable.bind import Array, Bytes
from csrun.runtime.weights import slot_views
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.remote_store import SETTLED, Order, StoreLink
from csrun.runtime.wire.signal import Waiter


def gradient_memory(plan: Plan) -> Bytes:
    """A block laid out as the store, of which only the gradients are ever touched.

    Shapes: uint8[plan.store.nbytes], pages without memory until they are written
    """
    block = mmap.mmap(-1, max(plan.store.nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(block, np.uint8, plan.store.nbytes)


class RemoteWeights:
    """As `StreamedWeights`, over a `StoreLink`: group g goes into slot g mod 2.

    The next group is fetched while one is computed, and group 0 again when its gradients have left:
    MemoryX answers in the order of the wafer's orders, so it comes with the step's update.
    """

    def __init__(
        self, plan: Plan, arena: Bytes, store: Bytes, link: StoreLink, control: Channel
    ) -> None:
        self._link = link
        self._slots = slot_views(plan, arena)
        flat = flat_views(plan, store)
        self._gradients = [flat.get(f"gradients/{group.index}") for group in plan.groups]
        self._waiter = Waiter(link.arrived, control)
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
        gradients: Array | None = self._gradients[group]
        self._is_settled = False
        self._holds[group % 2] = None
        self._link.order(Order.GRADIENTS, group, gradients)
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
