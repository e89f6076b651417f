"""Readback: numbers of values that the loop reads, and a warning where it reads too often."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from weakref import ReferenceType, ref

import torch
from torch.utils._pytree import tree_leaves

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.run.replay import GoneError
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.step_outputs import NORM, Deferred, InStep, Owner, Slot, StepOutputs

CHECKED_STEPS = 3  # of each variant, in which forward's Python runs
READ_IN_A_ROW = 20  # steps, before it is said

log = logging.getLogger("csrun")


def view_is_stale(weight: str) -> UsageError:
    """Error for a view of a weight that is read after the optimizer has changed it."""
    return UsageError(
        f"{user_line()}: a view of parameter {weight} is read after optimizer.step(), which has "
        "changed it: return the weight itself, or .clone() of the view"
    )


def _too_late(place: InStep) -> UsageError:
    """Error for a value that its step has not returned."""
    step = f"{user_line()}: step {place.step.number + 1}"
    if place.slot.is_gradient:
        return UsageError(
            f"{step} has already run without its gradients: read them before the loss in the same "
            f"step, or once in steps 1 to {CHECKED_STEPS}"
        )
    return UsageError(
        f"{step} has already run without this output: read it before the loss in the same step, or "
        f"once in steps 1 to {CHECKED_STEPS}"
    )


class Loop(Owner, Protocol):
    """The loop, as readback sees it."""

    def run_early(self, values: StepOutputs, *, with_update: bool = False) -> None:
        """Queue the current step before `optimizer.step()`, if it is this one."""


class Readback:
    """Access to the values of steps that run on the wafer."""

    def __init__(self, loop: Loop, run: ScriptRun) -> None:
        self._loop, self._run = loop, run
        self._in_a_row, self._last = 0, -1
        self._waiting: list[ReferenceType[Deferred]] = []

    def read(self, step: StepOutputs, slot: Slot) -> torch.Tensor:
        """Return the numbers of a value."""
        if slot.is_loss:
            return torch.tensor(self.loss(step), dtype=slot.meta.dtype)
        self.want([InStep(step, slot)])
        found = step.outputs[slot.value]
        if not slot.is_gradient:  # what is computed from it is logged
            self._run.replay.keep(step, slot.value, found)
        return found

    def of_gradients(self, step: StepOutputs, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the numbers of a value that is computed from the gradients of a step.

        They are logged by their place among such reads of the step.
        """
        ref = Ref(NORM.number - 1 - step.gradients_read)
        step.gradients_read += 1
        found = self._run.replay.value(step, ref)
        if found is None:
            found = compute()
            self._run.replay.keep(step, ref, found)
        return found

    def loss(self, step: StepOutputs) -> float:
        """Return the loss of a step, after the step has run."""
        self._take_recorded(step)
        if step.loss is None:
            self._run_through(step)
        if step.loss is None:
            raise UsageError(
                f"{user_line()}: the loss of step {step.number + 1}, which an earlier run has "
                "taken, was not kept: begin in a new model_dir"
            )
        return step.loss

    def want(self, places: Sequence[InStep]) -> None:
        """Have values computed. A variant that does not return one of them is compiled again."""
        for place in places:
            if not place.is_known:
                self._keep_known(place)
        wanted = [place for place in places if not place.is_known]
        if not wanted:
            return
        updated = [place.step for place in wanted if self._is_of_update(place.slot)]
        for place in wanted:
            if place.slot.value is NORM:
                continue
            if place.step.status.has_values:
                raise _too_late(place)
            place.step.asked[place.slot.value] = None
        for values in {id(place.step): place.step for place in wanted}.values():
            self._loop.run_early(values, with_update=values in updated)
        for place in wanted:
            if place.step.recorded:  # after all
                self._keep_known(place)
        self._run.flush_for_read()
        for place in wanted:
            if not place.is_known:
                raise UsageError(
                    f"{user_line()}: a value of step {place.step.number + 1} is read, and the loop "
                    "has left that step before it was computed: read it within the step"
                )
        self._count(wanted[-1].step.number)

    def _is_of_update(self, slot: Slot) -> bool:
        """True if a value is known once the edits of gradients are, or would be wrong without."""
        return slot.value is NORM or (slot.is_gradient and not self._run.accumulates)

    def require_current(self, places: Sequence[InStep]) -> None:
        """Raises: UsageError for a view of a weight that the optimizer has changed since"""
        for place in places:
            if place.step.updates != self._run.updates:
                raise view_is_stale(place.slot.weight)

    def settle_later(self, computation: Deferred) -> None:
        """Have a computation settled when the current recorded step is over."""
        self._waiting.append(ref(computation))

    def settle(self) -> None:
        """Settle what waits for the recorded step that is over.

        A value that cannot be known any more is refused where the loop reads it.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            computation = each()
            if computation is not None and not self._run.replay.is_on:
                with suppress(GoneError):
                    computation.settle()
                    if computation.is_of_recorded:
                        self._waiting.append(each)
                    elif computation.is_ready:  # a count of hits must not keep its outputs
                        computation.compute()

    def _keep_known(self, place: InStep) -> None:
        """Take a value from the step's batch, or from the value log."""
        step, slot = place.step, place.slot
        if slot.is_loss:
            self._take_recorded(step)
            return
        if slot in step.recorded:
            step.outputs[slot.value] = step.recorded[slot].numbers()
            return
        found = None
        if slot.is_input and step.batch is not None:
            with suppress(LookupError):  # of a pass whose order nobody knows any more
                tensors = (x for x in tree_leaves(step.batch()) if isinstance(x, torch.Tensor))
                found = list(tensors)[slot.value.number]
        if found is None:
            found = self._run.replay.value(step, slot.value)
        if found is not None:
            step.outputs[slot.value] = found

    def _take_recorded(self, step: StepOutputs) -> None:
        """Take the loss of a step that began on tokens and was recorded after all."""
        loss = next((slot for slot in step.recorded if slot.is_loss), None)
        if loss is not None and step.loss is None:
            step.loss = float(step.recorded[loss].numbers())

    def _run_through(self, values: StepOutputs) -> None:
        """Run all steps up to and including this one."""
        self._loop.run_early(values)
        self._take_recorded(values)
        self._run.flush_for_read()
        self._count(values.number)

    def _count(self, step: int) -> None:
        self._in_a_row = self._in_a_row + 1 if step == self._last + 1 else 0
        self._last = step
        if self._in_a_row == READ_IN_A_ROW:
            log.warning(
                f"{user_line()}: the loop reads a value in each step, so that no step is run "
                "ahead: read one every 50 steps to have up to 256 steps in one order"
            )
