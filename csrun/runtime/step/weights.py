"""Weights: their first values, where a wafer has them, and what becomes of its gradients."""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from csrun.executable import Initializer, InitializerKind, Plan, Step, UpdateProgram, flat_views
from csrun.executable.bind import Array, Bytes
from csrun.executable.plan import PREFETCH_BYTES, Group
from csrun.runtime.wire.shared import Counter, Waiter

CHUNK = 1 << 20  # values drawn at once: bounds the extra memory


def initialize(plan: Plan, state: Mapping[str, Array], seed: int) -> None:
    """Write initial values into every tensor of `state`: as the plan says, optimizer state zero.

    A parameter's values depend on the seed, its name and its shape, and on nothing else.
    """
    for array in state.values():
        array[...] = 0
    for parameter in plan.parameters:
        _fill(state[parameter.name].reshape(-1), parameter.initializer, seed, parameter.name)


def _fill(flat: Array, initializer: Initializer, seed: int, name: str) -> None:
    generator = _generator(seed, name)
    for start in range(0, len(flat), CHUNK):
        part = flat[start : start + CHUNK]
        part[...] = _draw(generator, initializer, len(part))


def _generator(seed: int, name: str) -> np.random.Generator:
    """A counter-based generator of its own for each (seed, parameter).

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox)
    """
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _draw(generator: np.random.Generator, initializer: Initializer, count: int) -> Array:
    kind, scale = initializer.kind, initializer.scale
    if kind is InitializerKind.UNIFORM:
        return generator.uniform(-scale, scale, count)
    if kind is InitializerKind.NORMAL:
        return generator.normal(0.0, scale, count)
    return np.full(count, 1.0 if kind is InitializerKind.ONES else 0.0)


class Weights(Protocol):
    """What the step loop asks for around each group's functions."""

    def acquire(self, group: int) -> None:
        """Forward: have the group's newest weights where its functions read them."""

    def reacquire(self, group: int) -> None:
        """Backward: have the weights that the group's forward pass had."""

    def deliver(self, group: int, step: Step) -> None:
        """The group's gradients of this step are complete in the store."""

    def settle(self) -> None:
        """Wait until every delivered gradient has become an update."""


class ResidentWeights:
    """Weights and optimizer state on the wafer itself: pipelined mode and the CPU run.

    A group's weights are not read again in a step once its gradients are complete, so the update
    follows at once.
    """

    def __init__(self, program: UpdateProgram) -> None:
        self._update = program.update

    def acquire(self, group: int) -> None:
        """The weights are always there."""

    def reacquire(self, group: int) -> None:
        """The weights are always there."""

    def deliver(self, group: int, step: Step) -> None:
        self._update[group](step)

    def settle(self) -> None:
        """Updates are immediate."""


def slot_views(plan: Plan, arena: Bytes) -> list[Array]:
    """For each group, its weights in its arena slot, flat."""

    def slot_of(group: Group) -> Array:
        offset = group.slot_offset_bytes
        if offset is None:
            raise ValueError(f"group {group.index} has no weight slot: not a streaming plan")
        return arena[offset : offset + group.nbytes].view(plan.precision)

    return [slot_of(group) for group in plan.groups]


def slot_copies(plan: Plan, arena: Bytes, store: Bytes) -> list[Callable[[], None]]:
    """For each group, a function that copies its weights from the store into its arena slot."""
    sources = flat_views(plan, store)

    def copy_of(slot: Array, source: Array) -> Callable[[], None]:
        return lambda: slot.__setitem__(..., source)

    slots = enumerate(slot_views(plan, arena))
    return [copy_of(slot, sources[f"weights/{group}"]) for group, slot in slots]


class Slots:
    """The wafer's two weight slots: group g goes into slot g mod 2.

    `load` copies only when the slot does not hold the group's weights of the step yet; in the
    backward pass the last two groups are still there. `prefetch` copies a
    large group in a thread of its own while the group in the other slot is computed on.
    """

    def __init__(self, plan: Plan, arena: Bytes, store: Bytes) -> None:
        self._copies = slot_copies(plan, arena, store)
        self._large = [group.nbytes >= PREFETCH_BYTES for group in plan.groups]
        self._holds: list[int | None] = [None, None]
        self._thread = ThreadPoolExecutor(1, "prefetch") if any(self._large) else None
        self._coming: tuple[int, Future[None]] | None = None

    def load(self, group: int) -> None:
        """Have the group's weights in its slot."""
        if self._coming is not None:
            coming, copied = self._coming
            copied.result()
            self._holds[coming % 2] = coming
            self._coming = None
        if self._holds[group % 2] != group:
            self._copies[group]()
            self._holds[group % 2] = group

    def prefetch(self, group: int) -> None:
        """Begin to load a group whose slot is free, if there is such a group and it is large."""
        if self._thread is None or not 0 <= group < len(self._large) or not self._large[group]:
            return
        if self._coming is None and self._holds[group % 2] != group:
            self._holds[group % 2] = None
            self._coming = group, self._thread.submit(self._copies[group])

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def outdate(self, group: int) -> None:
        """The group's weights have changed, or will."""
        if self._holds[group % 2] == group:
            self._holds[group % 2] = None


class StreamedWeights:
    """Weights of MemoryX, streamed a group at a time; gradients stream back.

    `updates` counts the groups that MemoryX has updated, in its order: the last group first.
    `gradients` counts the groups that the wafer has delivered, in the same order.
    """

    def __init__(self, slots: Slots, updates: Waiter, gradients: Counter) -> None:
        self._slots = slots
        self._updates = updates
        self._gradients = gradients
        self._pending = 0  # delivered groups whose update has not been seen

    def acquire(self, group: int) -> None:
        """Wait until the group's last update is in the store, then load it."""
        # Updates come back last group first: once at most `group` are missing, this one is there.
        while self._pending > group:
            self._take()
        self._slots.load(group)
        self._slots.prefetch(group + 1)  # group 0 has waited for all updates, so it is there

    def reacquire(self, group: int) -> None:
        """Load the group again if its slot was taken; its gradients are not delivered yet."""
        self._slots.load(group)
        self._slots.prefetch(group - 1)

    def deliver(self, group: int, step: Step) -> None:
        """Hand the group's gradients to MemoryX."""
        self._slots.outdate(group)
        self._pending += 1
        self._gradients.raise_by()

    def settle(self) -> None:
        """Wait for the updates of all delivered groups."""
        while self._pending:
            self._take()

    def _take(self) -> None:
        self._updates.take()
        self._pending -= 1


class InProcessStreamedWeights:
    """Weight streaming inside one process: the same slots, MemoryX's part at once."""

    def __init__(self, slots: Slots, program: UpdateProgram | None) -> None:
        self._slots = slots
        self._update = program.update if program else []

    def acquire(self, group: int) -> None:
        self._slots.load(group)

    def reacquire(self, group: int) -> None:
        """Load the group again if its slot was taken."""
        self._slots.load(group)

    def deliver(self, group: int, step: Step) -> None:
        """Update the group in the store."""
        self._slots.outdate(group)
        self._update[group](step)

    def settle(self) -> None:
        """Updates are immediate."""
