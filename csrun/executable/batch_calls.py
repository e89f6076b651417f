"""Visits bound to batches: a visit of machine code is prepared once for each batch's arrays.

    def forward_0(batch, step):                     one call of all kernels, whose arguments
        features, labels = batch                    are those of this batch
        stretch_0(features, labels)
        stretch_1(labels, 1 / step.counts[0])

The arrays of a batch are those of a slot of a ring, which come again after a few steps. Then only
the numbers of the step are set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csrun.executable.arrays import Array, Batch, ReusedBatch
from csrun.executable.bind import StepState
from csrun.executable.bound_kernel import BoundKernel
from csrun.executable.bound_product import InputProduct
from csrun.executable.stretches import MOST_CALLS
from csrun.executable.team import BoundCall, joined_jobs

VisitFunction = Callable[[Batch, StepState], None]


@dataclass(frozen=True)
class KernelCall:
    """A call of a visit: what it calls, and how many inputs of the batch and numbers it passes."""

    function: Callable[..., None]
    inputs: int
    numbers: int


def bind_batches(
    visit: VisitFunction,
    calls: Sequence[tuple[Callable[..., None], int, int]],
    inputs: Callable[[Batch], tuple[Array, ...]],
    numbers: Callable[[StepState], tuple[object, ...]],
) -> VisitFunction:
    """Return a visit that makes these calls; the visit itself if one has no machine code.

    inputs, numbers: arguments of all calls, in order.
    """
    found = [KernelCall(*call) for call in calls]
    if all(isinstance(c.function, BoundCall | BoundKernel | InputProduct) for c in found):
        return BatchVisit(visit, found, inputs, numbers)
    return visit


class BatchVisit:
    """A visit of machine code, bound to each batch that is reused."""

    def __init__(
        self,
        visit: VisitFunction,
        calls: Sequence[KernelCall],
        inputs: Callable[[Batch], tuple[Array, ...]],
        numbers: Callable[[StepState], tuple[object, ...]],
    ) -> None:
        self._visit, self._calls = visit, calls
        self._inputs, self._numbers = inputs, numbers
        self._bound: dict[int, list[BoundCall]] = {}  # by the number of the batch
        self._numbered: list[tuple[BoundKernel, slice]] = []
        start = 0
        for call in calls:
            if isinstance(call.function, BoundKernel) and call.function.has_numbers:
                self._numbered.append((call.function, slice(start, start + call.numbers)))
            start += call.numbers

    def __call__(self, batch: Batch, step: StepState) -> None:
        """Compute the visit."""
        if not isinstance(batch, ReusedBatch):
            self._visit(batch, step)
            return
        if (calls := self._bound.get(batch.number)) is None:
            calls = self._bound[batch.number] = self._bind(batch)
        if not calls:
            self._visit(batch, step)
            return
        if self._numbered:
            numbers = self._numbers(step)
            for kernel, own in self._numbered:
                kernel.set_numbers(*numbers[own])
        for call in calls:
            call()

    def _bind(self, batch: Batch) -> list[BoundCall]:
        """Return the calls for a batch; none if one of them would copy an input."""
        inputs = iter(self._inputs(batch))
        found: list[BoundCall] = []
        for call in self._calls:
            own = _bound_call(call.function, [next(inputs) for _ in range(call.inputs)])
            if own is None:
                return []
            found.append(own)
        starts = range(0, len(found), MOST_CALLS)
        return [joined_jobs(found[start : start + MOST_CALLS]) for start in starts]


def _bound_call(function: Callable[..., None], inputs: Sequence[Array]) -> BoundCall | None:
    if isinstance(function, BoundKernel | InputProduct):
        return function.bind(*inputs)
    assert isinstance(function, BoundCall), "it was checked"
    return function
