"""SwarmX on one machine: what wafers have in common, in the store that all of them have mapped.

Weights are broadcast by being there once. Each wafer takes its rows of the global batch and has a
place of its own for gradients; MemoryX adds them in the order of the systems, whichever comes
first, so that no sum depends on that. A step's update waits for the loss of all parts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Protocol

import numpy as np

from csrun.executable import Plan, flat_views
from csrun.executable.arrays import Array, Bytes
from csrun.executable.bind import share_of
from csrun.executable.store_places import AnyStore, losses_view, of_system
from csrun.runtime.step.source import BatchSource, TakenBatch
from csrun.runtime.wire.messages import StreamerUse


class SystemShare:
    """A system's rows of each global batch; what counts is said of the whole."""

    def __init__(self, source: BatchSource, plan: Plan, system: int) -> None:
        self._source = source
        self._rows = slice(system * share_of(plan), (system + 1) * share_of(plan))

    def take(self) -> TakenBatch | None:
        """The rows of the next batch; None at the end of the data."""
        taken = self._source.take()
        if taken is None:
            return None
        own = (array[self._rows] if array.ndim else array for array in taken.batch)
        return TakenBatch(tuple(own), taken.made)

    def release(self) -> None:
        """The batch taken last is no longer read."""
        self._source.release()

    def used(self) -> tuple[StreamerUse, ...]:
        """Cost of the batches taken since the last call."""
        return self._source.used()


class Ballot:
    """The loss's parts of a step, each written before its system's first gradients are delivered.

    MemoryX counts them before it makes an update, and each wafer reads that before its next step.
    Each of its tasks, by its number, has all parts in its own store, and counts for itself.
    """

    def __init__(self, plan: Plan, store: AnyStore, server: int = 0) -> None:
        losses = losses_view(plan, store, server)
        if losses is None:
            raise ValueError("the store of a single system has no space for partial losses")
        self._parts, self._sum = losses[:-1], losses[-1:]

    def put(self, system: int, loss_sum: float) -> None:
        """A system's part of the loss."""
        self._parts[system] = loss_sum

    def count(self) -> bool:
        """Add all of them up; whether they make a number."""
        # In the order of the systems, whichever part came first: the sum has the same bits in each
        # run.
        self._sum[0] = sum(self._parts.tolist())
        return self.is_number

    @property
    def is_number(self) -> bool:
        """Return whether they did, when they were counted."""
        return isfinite(self._sum[0])


class Votes(Protocol):
    """A ballot as a wafer has it, wherever its parts are added up."""

    def put(self, system: int, loss_sum: float) -> None:
        """A system's part of the loss."""

    @property
    def is_number(self) -> bool:
        """Return whether all parts make one, when they were counted."""


def ballots_of(plan: Plan, store: AnyStore, server_of: Sequence[int]) -> dict[int, Ballot]:
    """Ballots of all MemoryX tasks, each by the group that the task gets first in a step."""
    first_of: dict[int, int] = {}
    for group in plan.deliveries:
        first_of.setdefault(server_of[group], group)
    return {group: Ballot(plan, store, server) for server, group in first_of.items()}


class Verdict(Protocol):
    """Decision whether a step becomes an update, by its loss."""

    def lets_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        """Return whether the step goes on and delivers the groups of `completes`, if any."""

    def is_applied(self, loss_sum: float) -> bool:
        """Return whether the step goes on and delivers the groups of `completes`, if any."""


class _SingleVote:
    """Vote of one system: a NaN loss ends the step before anything is delivered."""

    def lets_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        return isfinite(loss_sum)

    def is_applied(self, loss_sum: float) -> bool:
        return isfinite(loss_sum)


ALONE = _SingleVote()


class Vote:
    """Vote of several systems' training; ballots: as of `ballots_of`.

    All gradients are delivered whatever a system's part of the loss is, as MemoryX awaits them of
    every one. A task has counted the parts of a step before the next one's are there: its groups
    are used, and so awaited, in the forward pass. await_first: waits until MemoryX has the step's
    first group's of all, and has counted the parts.
    """

    def __init__(
        self, ballots: Mapping[int, Votes], system: int, await_first: Callable[[], None]
    ) -> None:
        self._ballots, self._system = ballots, system
        self._first = next(iter(ballots.values()))
        self._await_first = await_first

    def lets_deliver(self, completes: Collection[int], loss_sum: float) -> bool:
        """Return True; the part of the loss is there before a task's first gradients."""
        for group in completes:
            if (ballot := self._ballots.get(group)) is not None:
                ballot.put(self._system, loss_sum)
        return True

    def is_applied(self, loss_sum: float) -> bool:
        """Return whether the parts of all systems make a number, once that is known."""
        if not isfinite(loss_sum):
            return False
        self._await_first()
        return self._first.is_number


class SystemGradientSum:
    """The gradients of several systems, added to the first one's in the order of the systems."""

    def __init__(self, plan: Plan, store: Bytes) -> None:
        views = [flat_views(of_system(plan, system), store) for system in range(plan.systems)]
        self._parts: list[Sequence[Array]] = [
            [view[f"gradients/{group.index}"] for view in views]
            if group.gradients_offset_bytes is not None
            else []
            for group in plan.groups
        ]

    def add(self, group: int, system: int) -> None:
        """The group's gradients of this system, after those of the systems before it."""
        if system:
            first, part = self._parts[group][0], self._parts[group][system]
            np.add(first, part, out=first)
