"""Sums of gradients in the store: over minibatches, or over the batches of accumulation."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from csrun.executable import Executable, Plan, Runtime, StepState, flat_views
from csrun.executable.bind import AnyStore, Array, Batch, Bytes, partial_gradients
from csrun.runtime.wire.messages import StepOrder

Visit = Callable[[Batch, StepState], None]


def places(order: StepOrder) -> Iterator[tuple[int, int, bool]]:
    """Return for each batch its global step, its number in that, and whether it is the last."""
    first, count, gathering = order.first, order.count, order.gathering
    if gathering is None:
        yield from ((first + number, 0, True) for number in range(count))
        return
    step, batch = first, gathering.before
    for ends in gathering.ends[:count]:
        yield step, batch, ends
        step, batch = (step + 1, 0) if ends else (step, batch + 1)


def first_and_later(
    executable: Executable, arena: Bytes, store: AnyStore, runtime: Runtime
) -> tuple[list[Visit], list[Visit]]:
    """The program of the first micro-batch or batch, and that of later ones, if there are any."""
    first = executable.wafer_program(arena, store, runtime).visits
    # Without a later batch the program is bound once: that costs time and views.
    if executable.plan.micro_batches == 1 and not executable.plan.accumulates:
        return first, first
    return first, executable.wafer_program(arena, store, runtime, is_added=True).visits


@dataclass(frozen=True, slots=True)
class GradientSum:
    """A group's gradients in the store, and where a visit of a later minibatch writes its own.

    is_part: other visits write to the group's gradients, too, so that this one must not find there
    what others have left.
    """

    total: Array
    partial: Array
    is_part: bool

    def prepare(self) -> None:
        """Before the visit."""
        if self.is_part:
            self.partial.fill(0)

    def add(self) -> None:
        """After the visit."""
        np.add(self.total, self.partial, out=self.total)


def run_visit(visit: Visit, batch: Batch, step: StepState, sums: Sequence[GradientSum]) -> None:
    """Call a function of the program, and add up the gradients that are to be."""
    for gradients in sums:
        gradients.prepare()
    visit(batch, step)
    for gradients in sums:
        gradients.add()


def gradient_sums(plan: Plan, arena: Bytes, store: AnyStore) -> list[list[GradientSum]]:
    """For each visit the gradients that it writes."""
    if plan.store.gradients_offset is None:
        return [[] for _ in plan.visits]
    flat, partial = flat_views(plan, store), partial_gradients(plan, arena)
    visits_of = Counter(group for visit in plan.visits for group in visit.gradients)
    return [
        [GradientSum(flat[f"gradients/{g}"], partial[g], visits_of[g] > 1) for g in visit.gradients]
        for visit in plan.visits
    ]
