"""SwarmX on one machine: data that the wafers share in the store, which all of them map.

Weights are broadcast by being mapped. Each wafer takes its rows of the global batch and has
separate gradients, which MemoryX adds in the order of the systems regardless of arrival, so sums
are deterministic. A step's update waits for the loss of all parts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Protocol

from csrun.executable import Plan, flat_views
from csrun.executable.arrays import Array, Bytes
from csrun.executable.bind import share_of
from csrun.executable.store_places import AnyStore, losses_view, of_system
from csrun.runtime.step.call_threads import CallThreads, add_in_place
from csrun.runtime.step.source import BatchSource, GlobalBatch
from csrun.runtime.wire.messages import StreamerUse


class SystemShare:
    """A system's rows of each global batch; counts are those of the full batch."""

    def __init__(self, source: BatchSource, plan: Plan, system: int) -> None:
        self._source = source
        self._rows = slice(system * share_of(plan), (system + 1) * share_of(plan))

    def take(self) -> GlobalBatch | None:
        """Return the rows of the next batch; None at the end of the data."""
        taken = self._source.take()
        if taken is None:
            return None
        own = (array[self._rows] if array.ndim else array for array in taken.batch)
        return GlobalBatch(tuple(own), taken.made)

    def release(self) -> None:
        """Release the batch taken last."""
        self._source.release()

    def used(self) -> tuple[StreamerUse, ...]:
        """Return the cost of the batches taken since the last call."""
        return self._source.used()


class LossReduction:
    """Partial losses of a step, each written before its system's first gradients are delivered.

    MemoryX adds them before it makes an update, and each wafer reads the result before its next
    step. Each MemoryX task, by its index, has all parts in its own store, and adds them itself.
    """

    def __init__(self, plan: Plan, store: AnyStore, server: int = 0) -> None:
        losses = losses_view(plan, store, server)
        if losses is None:
            raise ValueError("the store of a single system has no space for partial losses")
        self._parts, self._sum = losses[:-1], losses[-1:]

    def put(self, system: int, loss_sum: float) -> None:
        """Write a system's part of the loss."""
        self._parts[system] = loss_sum

    def count(self) -> bool:
        """Add all parts; return whether the sum is finite."""
        # In the order of the systems, regardless of arrival: the sum has the same bits in each run.
        self._sum[0] = sum(self._parts.tolist())
        return self.is_finite

    @property
    def is_finite(self) -> bool:
        """Return whether the sum was finite, after it was computed."""
        return isfinite(self._sum[0])


class LossReducer(Protocol):
    """A wafer's side of a loss reduction, wherever the parts are added."""

    def put(self, system: int, loss_sum: float) -> None:
        """Write a system's part of the loss."""

    @property
    def is_finite(self) -> bool:
        """Return whether the sum of all parts is finite, once it was computed."""


def loss_reductions_of(
    plan: Plan, store: AnyStore, server_of: Sequence[int]
) -> dict[int, LossReduction]:
    """Return the loss reductions of all MemoryX tasks, each by the group that the task receives
    first in a step.
    """
    first_of: dict[int, int] = {}
    for group in plan.deliveries:
        first_of.setdefault(server_of[group], group)
    return {group: LossReduction(plan, store, server) for server, group in first_of.items()}


class LossCheck(Protocol):
    """Decision, by its loss, whether a step becomes an update."""

    def may_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        """Return whether the step continues and delivers the groups of `completes`, if any."""

    def is_applied(self, loss_sum: float) -> bool:
        """Return whether the step is applied."""


class _LocalLossCheck:
    """Decision of a single system: a non-finite loss ends the step before anything is delivered."""

    def may_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        return isfinite(loss_sum)

    def is_applied(self, loss_sum: float) -> bool:
        return isfinite(loss_sum)


SINGLE_SYSTEM = _LocalLossCheck()


class GlobalLossCheck:
    """Decision in a training of several systems; reductions: as `loss_reductions_of` returns them.

    All gradients are delivered regardless of a system's part of the loss, because MemoryX waits for
    those of every system. A task has added the parts of a step before those of the next one arrive:
    its groups are used, and so awaited, in the forward pass.

    await_first: waits until MemoryX has all gradients of the step's first group, and has added the
        parts.
    """

    def __init__(
        self, reductions: Mapping[int, LossReducer], system: int, await_first: Callable[[], None]
    ) -> None:
        self._reductions, self._system = reductions, system
        self._first = next(iter(reductions.values()))
        self._await_first = await_first

    def may_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        """Return True; the part of the loss is written before a task's first gradients."""
        for group in completes:
            if (reduction := self._reductions.get(group)) is not None:
                reduction.put(self._system, loss_sum)
        return True

    def is_applied(self, loss_sum: float) -> bool:
        """Return whether the sum over all systems is finite, waiting for it."""
        if not isfinite(loss_sum):
            return False
        self._await_first()
        return self._first.is_finite


class SystemGradientSum:
    """Sum of the gradients of several systems, added to the first one's in the order of the
    systems.

    threads: those that share the sum of a large group.
    """

    def __init__(self, plan: Plan, store: Bytes, threads: CallThreads) -> None:
        self._threads = threads
        views = [flat_views(of_system(plan, system), store) for system in range(plan.systems)]
        self._parts: list[Sequence[Array]] = [
            [view[f"gradients/{group.index}"] for view in views]
            if group.gradients_offset_bytes is not None
            else []
            for group in plan.groups
        ]

    def add(self, group: int, system: int) -> None:
        """Add the group's gradients of this system, after those of the earlier systems."""
        if system:
            first, part = self._parts[group][0], self._parts[group][system]
            add_in_place(first, part, self._threads)
