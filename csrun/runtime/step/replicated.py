"""Replicas of a model: each computes its share of a batch, on several threads of the task.

The sum of their gradients is added up in their order, so no bit depends on the threads.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite

from csrun.executable import Plan, StepState
from csrun.executable.arrays import Array, Batch, ReusedBatch, SplitBatch
from csrun.executable.replica_plan import of_replica, replica_gradients
from csrun.runtime.step.call_threads import CallThreads, add_in_place
from csrun.runtime.step.compute import Compute, compute_of, part_of
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.weights import Weights


class Replicas:
    """All replicas of a model; one update follows the sum of their gradients.

    Each thread takes the next replica until none is left, and computes it alone. Replicas that
    would leave threads idle at the end are computed one after the other, each by all threads.
    """

    def __init__(self, program: PlacedProgram, weights: Weights) -> None:
        plan, runtime = program.plan, program.runtime
        self._weights, self._deliveries = weights, plan.deliveries
        self._count, self._rows = plan.replicas, plan.batch_size // plan.replicas
        self._threads = CallThreads(1 if reports_values(plan) else runtime.replica_threads)
        self._concurrent = self._count - (self._count % self._threads.count)
        if self._threads.count == 1:
            self._concurrent = 0
        elif runtime.threads == 1:
            self._concurrent = self._count
        alone = replace(runtime, threads=1)
        self._computes: list[Compute] = [
            compute_of(
                replace(
                    program,
                    executable=replace(program.executable, plan=of_replica(plan, number)),
                    store=program.arena,
                    runtime=alone if number < self._concurrent else runtime,
                ),
                _Undelivered(),
            )
            for number in range(self._count)
        ]
        self._gradients = replica_gradients(plan, program.arena)
        self._parts: dict[int, list[Batch]] = {}  # by the number of the batch
        self.outputs: list[list[Array]] = [
            list(chain.from_iterable(of_output))
            for of_output in zip(*(each.outputs for each in self._computes), strict=True)
        ]

    def run(self, batch: Batch, step: StepState) -> float:
        """Compute one step; the update follows the last replica, group by group."""
        parts, losses = self._parts_of(batch), [0.0] * self._count

        def compute(number: int) -> None:
            own = replace(step, first_sample=step.first_sample + number * self._rows)
            losses[number] = self._computes[number].run(parts[number], own)

        self._threads.run(compute, range(self._concurrent))
        for number in range(self._concurrent, self._count):
            compute(number)
        loss_sum = sum(losses)
        if isfinite(loss_sum) and self._deliveries:
            self._add_gradients()
            for group in self._deliveries:
                self._weights.deliver(group, step)
        return loss_sum

    def _parts_of(self, batch: Batch) -> Sequence[Batch]:
        """Return the share of each replica; those of a reused batch are reused as well."""
        if isinstance(batch, SplitBatch):
            return batch.parts
        if not isinstance(batch, ReusedBatch):
            return [part_of(batch, number, self._rows) for number in range(self._count)]
        if batch.number not in self._parts:
            self._parts[batch.number] = [
                ReusedBatch(part_of(batch, number, self._rows)) for number in range(self._count)
            ]
        return self._parts[batch.number]

    def _add_gradients(self) -> None:
        total, *others = self._gradients
        for other in others:
            add_in_place(total, other, self._threads)


def reports_values(plan: Plan) -> bool:
    """Return whether a program reports layers or values, which it does in one thread."""
    return bool(plan.marks) or plan.recording is not None or plan.measuring is not None


class _Undelivered:
    """Weights of a replica: resident, and updated by the gradients of all replicas."""

    held_s = 0.0

    def enter(self, visit: int) -> None:
        """Do nothing."""

    def deliver(self, group: int, step: StepState) -> None:
        """Do nothing."""

    def loss_scale(self, step: int) -> float:
        """Return 1; the scale is that of all replicas."""
        return 1.0

    def settle(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""
