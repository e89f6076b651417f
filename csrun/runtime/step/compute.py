"""One step of a loaded program: the order in which groups and minibatches are run.

Both ways give the loss's sum, and leave the weights alone when it is not finite.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Protocol

import numpy as np

from csrun.executable import Executable, Plan, Runtime, Step, flat_views, wafer_views
from csrun.executable.bind import Array, Batch, Bytes, partial_gradients
from csrun.runtime.step.weights import Weights


class Compute(Protocol):
    """Computes a step."""

    @property
    def outputs(self) -> Sequence[Sequence[Array]]:
        """The arrays of each minibatch, for each output of the plan."""

    def run(self, batch: Batch, step: Step) -> float:
        """One step forward and backward; the sum of the loss over the batch's valid rows."""


def make_compute(
    executable: Executable, arena: Bytes, store: Bytes, runtime: Runtime, weights: Weights
) -> Compute:
    """The way of computing that the plan asks for."""
    kind = WholeBatch if executable.plan.minibatches == 1 else Minibatches
    return kind(executable, arena, store, runtime, weights)


class WholeBatch:
    """The batch as one: groups forward in order, then backward in reverse."""

    def __init__(
        self,
        executable: Executable,
        arena: Bytes,
        store: Bytes,
        runtime: Runtime,
        weights: Weights,
    ) -> None:
        plan = executable.plan
        program = executable.wafer_program(arena, store, runtime)
        views = wafer_views(plan, arena, store)
        self.outputs: list[list[Array]] = [[views[output.buffer]] for output in plan.outputs]
        self._forward = list(enumerate(program.forward))
        self._backward = list(enumerate(program.backward))[::-1]
        self._loss: Array | None = views[plan.loss_buffer] if plan.loss_buffer else None
        self._weights = weights

    def run(self, batch: Batch, step: Step) -> float:
        """One step."""
        for group, forward in self._forward:
            self._weights.acquire(group)
            forward(batch, step)
        loss_sum = float(self._loss[0]) if self._loss is not None else 0.0
        if isfinite(loss_sum):
            for group, backward in self._backward:
                self._weights.reacquire(group)
                backward(batch, step)
                self._weights.deliver(group, step)
        return loss_sum


class Minibatches:
    """Several equal minibatches, in the order of the plan's schedule; one update a step.

    Replicas of the model are minibatches here: what each does, the one arena does after the other.

    The first minibatch's gradients are written to the store, those of the others beside and added,
    in the order of the minibatches. Weights must be resident.
    """

    def __init__(
        self,
        executable: Executable,
        arena: Bytes,
        store: Bytes,
        runtime: Runtime,
        weights: Weights,
    ) -> None:
        plan = executable.plan
        self._plan, self._weights = plan, weights
        flights = range(plan.minibatches)
        programs = [executable.wafer_program(arena, store, runtime, j) for j in flights]
        views = [wafer_views(plan, arena, store, j) for j in flights]
        self.outputs: list[list[Array]] = [[v[o.buffer] for v in views] for o in plan.outputs]
        self._losses = [v[plan.loss_buffer] for v in views] if plan.loss_buffer else []
        self._programs = programs
        self._sums = _gradient_sums(plan, arena, store)
        self._rows = plan.batch_size // plan.minibatches

    def run(self, batch: Batch, step: Step) -> float:
        """One step; the update comes after the last minibatch, group by group from the end."""
        parts = [self._part(batch, j) for j in range(len(self._programs))]
        for call in self._plan.schedule:
            step.first_sample = call.minibatch * self._rows
            program = self._programs[call.minibatch]
            run = (program.backward if call.backward else program.forward)[call.group]
            run(parts[call.minibatch], step)
            if call.backward and call.minibatch:
                total, partial = self._sums[call.group]
                np.add(total, partial, out=total)
        loss_sum = sum((float(loss[0]) for loss in self._losses), 0.0)
        if isfinite(loss_sum):
            for group in reversed(range(len(self._programs[0].backward))):
                self._weights.deliver(group, step)
        return loss_sum

    def _part(self, batch: Batch, minibatch: int) -> Batch:
        first = minibatch * self._rows
        return tuple(array[first : first + self._rows] for array in batch)


def _gradient_sums(plan: Plan, arena: Bytes, store: Bytes) -> list[tuple[Array, Array]]:
    """Each group's gradients in the store, and where those of a later minibatch come."""
    if plan.store.gradients_offset is None:
        return []
    flat = flat_views(plan, store)
    partial = partial_gradients(plan, arena)
    return [(flat[f"gradients/{g.index}"], partial[g.index]) for g in plan.groups]
