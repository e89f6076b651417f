"""Computation of a batch by the visits of a loaded program: as a whole, or in parts.

Each class computes in another order: over the full batch, over micro-batches one after the other,
or over minibatches in the order of the schedule. All return the sum of the loss, and deliver no
gradients if it is not finite.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

from csrun.executable import StepState
from csrun.executable.arrays import Array, Batch
from csrun.executable.bind import kept_outputs, share_of
from csrun.runtime.step.gradient_sums import gradient_sums, run_visit
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.swarmx import SINGLE_SYSTEM, LossCheck
from csrun.runtime.step.weights import Weights


class Compute(Protocol):
    @property
    def outputs(self) -> Sequence[Sequence[Array]]:
        """The arrays of each minibatch, for each output of the plan."""

    def run(self, batch: Batch, step: StepState) -> float:
        """Compute one batch forward and backward; return the sum of the loss over what counts in
        it.
        """


def compute_of(
    program: PlacedProgram, weights: Weights, loss_check: LossCheck = SINGLE_SYSTEM
) -> Compute:
    """Return the computation of a model without replicas, or of one of its replicas."""
    plan = program.plan
    if plan.at_once > 1:
        return Minibatches(program, weights)
    adds = plan.micro_batches > 1 or plan.accumulates or plan.sums_words
    kind = MicroBatches if adds else WholeBatch
    return kind(program, weights, loss_check)


class WholeBatch:
    """Full batch: one visit after the other."""

    def __init__(self, program: PlacedProgram, weights: Weights, loss_check: LossCheck) -> None:
        plan = program.plan
        views = program.views()
        self.outputs: list[list[Array]] = [[views[output.buffer]] for output in plan.outputs]
        self._visits = [
            (number, function, visit.completes)
            for number, (function, visit) in enumerate(
                zip(program.visits(), plan.visits, strict=True)
            )
        ]
        self._loss: Array | None = views[plan.loss_buffer] if plan.loss_buffer else None
        self._weights, self._loss_check = weights, loss_check

    def run(self, batch: Batch, step: StepState) -> float:
        for number, visit, completes in self._visits:
            self._weights.enter(number)
            visit(batch, step)
            if completes:
                if not self._loss_check.may_deliver(completes, self._loss_sum):
                    break
                for group in completes:
                    self._weights.deliver(group, step)
        return self._loss_sum

    @property
    def _loss_sum(self) -> float:
        return float(self._loss[0]) if self._loss is not None else 0.0


class MicroBatches:
    """Equal parts of the batch, one after the other, all in the same memory.

    Their gradients are added in the store after each visit. A group's gradients are complete, and
    its update follows, in the last part. Outputs of each part are kept until the step is over.

    In a step with several batches the first batch writes its gradients to the store; later ones add
    theirs, computed by this program or another one over the store. The visits of the last batch
    deliver them, or `deliver` does after all batches were computed.
    """

    def __init__(self, program: PlacedProgram, weights: Weights, loss_check: LossCheck) -> None:
        plan = program.plan
        self._weights, self._loss_check, self._deliveries = weights, loss_check, plan.deliveries
        self._count, self._rows = plan.micro_batches, share_of(plan) // plan.micro_batches
        first, later = program.first_and_later_visits()
        sums, begun = (gradient_sums(program, is_first=x) for x in (False, True))
        completes = [visit.completes for visit in plan.visits]
        self._first = list(zip(first, begun, completes, strict=True))
        self._later = list(zip(later, sums, completes, strict=True))
        views = program.views()
        self._loss = views[plan.loss_buffer] if plan.loss_buffer else None
        self._given = [views[output.buffer] for output in plan.outputs]
        kept = (
            kept_outputs(plan, program.arena)
            if self._count > 1
            else [[given] for given in self._given]
        )
        self.outputs: list[list[Array]] = kept

    def run(self, batch: Batch, step: StepState) -> float:
        """Compute one batch; a loss that is not finite ends its step before the update."""
        loss_sum, entered, first_sample = 0.0, 0, step.first_sample
        for number in range(self._count):
            part = batch if self._count == 1 else part_of(batch, number, self._rows)
            step.first_sample = first_sample + number * self._rows
            is_last = step.is_last and number == self._count - 1
            for visit, sums, completes in self._later if number or step.batch else self._first:
                self._weights.enter(entered)
                entered += 1
                run_visit(visit, part, step, sums)
                if completes and is_last:
                    if not self._loss_check.may_deliver(completes, loss_sum + self._part_loss):
                        break
                    for group in completes:
                        self._weights.deliver(group, step)
            loss_sum += self._part_loss
            if not self._loss_check.may_deliver((), loss_sum):
                break
            if self._count > 1:
                for kept, given in zip(self.outputs, self._given, strict=True):
                    kept[number][...] = given
        return loss_sum

    def deliver(self, step: StepState) -> None:
        """Deliver the gradients of the batches computed before; the step has no further batch."""
        for group in self._deliveries:
            self._weights.deliver(group, step)

    @property
    def _part_loss(self) -> float:
        return float(self._loss[0]) if self._loss is not None else 0.0


class Minibatches:
    """Several equal minibatches, in the order of the plan's schedule; one update per step.

    The first minibatch writes its gradients to the store. Those of the others are computed
    separately and added in the order of the minibatches, micro-batch by micro-batch. All weights
    are resident.
    """

    def __init__(self, program: PlacedProgram, weights: Weights) -> None:
        plan = program.plan
        self._plan, self._weights = plan, weights
        flights = range(plan.at_once)
        first, later = program.first_and_later_visits()
        others = [program.visits(j) for j in flights[1:]]
        views = [program.views(j) for j in flights]
        self._given: list[list[Array]] = [[v[o.buffer] for v in views] for o in plan.outputs]
        self.outputs = self._given if plan.micro_batches == 1 else kept_outputs(plan, program.arena)
        self._losses = [v[plan.loss_buffer] for v in views] if plan.loss_buffer else []
        self._programs = [first, *others], [later, *others]
        self._sums = [gradient_sums(program, is_first=x) for x in (True, False)]
        self._rows = plan.batch_size // plan.minibatches

    def run(self, batch: Batch, step: StepState) -> float:
        """Compute one step; the update follows the last minibatch, group by group."""
        loss_sum, first_sample = 0.0, step.first_sample
        for number in range(self._plan.micro_batches):
            loss_sum = self._micro_batch(number, loss_sum, batch, step, first_sample)
        if isfinite(loss_sum):
            for group in self._plan.deliveries:
                self._weights.deliver(group, step)
        return loss_sum

    def _micro_batch(
        self, number: int, loss_sum: float, batch: Batch, step: StepState, first_sample: int
    ) -> float:
        """Compute one micro-batch of a batch from this sample on; return the loss so far."""
        at_once = self._plan.at_once
        programs = self._programs[1 if number else 0]
        first_visit = number * len(self._plan.visits)
        for call in self._plan.schedule:
            minibatch = number * at_once + call.minibatch
            step.first_sample = first_sample + minibatch * self._rows
            part = part_of(batch, minibatch, self._rows)
            self._weights.enter(first_visit + call.visit)
            sums = self._sums[minibatch > 0][call.visit]
            run_visit(programs[call.minibatch][call.visit], part, step, sums)
        if self._plan.micro_batches > 1:
            for kept, given in zip(self.outputs, self._given, strict=True):
                for minibatch, array in enumerate(given, number * at_once):
                    kept[minibatch][...] = array
        return sum((float(loss[0]) for loss in self._losses), loss_sum)


def part_of(batch: Batch, number: int, rows: int) -> Batch:
    """Return one of equal parts of a batch; arrays without a batch axis belong to all parts."""
    first, last = number * rows, (number + 1) * rows
    return tuple(array[first:last] if array.ndim else array for array in batch)
