"""Readback: reads of values by the loop, and a warning about frequent reads."""

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
from csrun.pytorch.run.replay import ValueLostError
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.step_outputs import NORM, Deferred, Owner, Slot, StepOutputs, StepValue

CHECKED_STEPS = 3  # steps of each variant in which forward's Python runs
READ_IN_A_ROW = 20  # steps before the warning

log = logging.getLogger("csrun")


def view_is_stale(weight: str) -> UsageError:
    """Return the error for a read of a view of a weight after the optimizer has changed it."""
    return UsageError(
        f"{user_line()}: a view of parameter {weight} is read after optimizer.step(), which has "
        "changed it: return the weight itself, or .clone() of the view"
    )


def _too_late(place: StepValue) -> UsageError:
    """Return the error for a value that its step has not returned."""
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
    """The loop, as used by readback."""

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
            return torch.full(slot.meta.shape, self.loss(step), dtype=slot.meta.dtype)
        self.want([StepValue(step, slot)])
        found = step.outputs[slot.value]
        if not slot.is_gradient:  # values computed from it are logged
            self._run.replay.keep(step, slot.value, found)
        return found

    def of_gradients(self, step: StepOutputs, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the numbers of a value that is computed from the gradients of a step.

        They are logged by their index among such reads of the step.
        """
        ref = Ref(NORM.number - 1 - step.gradients_read)
        step.gradients_read += 1
        found = self._run.replay.value(step, ref)
        if found is None:
            found = compute()
            self._run.replay.keep(step, ref, found)
        return found

    def loss(self, step: StepOutputs) -> float:
        """Return the loss of a step, after running it."""
        self._take_recorded(step)
        if step.loss is None:
            self._run_through(step)
        if step.loss is None:
            raise UsageError(
                f"{user_line()}: step {step.number + 1} ran in an earlier run, which did not store "
                "its loss: begin in a new model_dir"
            )
        return step.loss

    def want(self, places: Sequence[StepValue]) -> None:
        """Request values. A variant that does not return one of them is compiled again."""
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
            place.step.request([place.slot.value])
        for values in {id(place.step): place.step for place in wanted}.values():
            self._loop.run_early(values, with_update=values in updated)
        for place in wanted:
            if place.step.recorded:  # recorded after all
                self._keep_known(place)
        self._run.flush_for_read()
        for place in wanted:
            if not place.is_known:
                raise UsageError(
                    f"{user_line()}: the loop left step {place.step.number + 1} before it ran, so "
                    "its values are not available: read them within the step"
                )
        self._count(wanted[-1].step.number)

    def _is_of_update(self, slot: Slot) -> bool:
        """True if a value depends on the edits of gradients, and is only known after them."""
        return slot.value is NORM or (slot.is_gradient and not self._run.accumulates)

    def require_current(self, places: Sequence[StepValue]) -> None:
        """Raises: UsageError for a view of a weight that the optimizer has changed since"""
        for place in places:
            if place.step.updates != self._run.updates:
                raise view_is_stale(place.slot.weight)

    def settle_later(self, computation: Deferred) -> None:
        """Settle a computation when the current recorded step has ended."""
        self._waiting.append(ref(computation))

    def settle(self) -> None:
        """Settle computations that wait for the recorded step that has ended.

        An error about an unknown value is raised when the loop reads the result.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            computation = each()
            if computation is not None and not self._run.replay.is_on:
                with suppress(ValueLostError):
                    computation.settle()
                    if computation.is_of_recorded:
                        self._waiting.append(each)
                    # a reference to the exception would keep its outputs alive
                    elif computation.is_ready:
                        computation.compute()

    def _keep_known(self, place: StepValue) -> None:
        """Take a value from the step's batch, or from the value log."""
        step, slot = place.step, place.slot
        if slot.is_loss:
            self._take_recorded(step)
            return
        if step.recorded is not None and slot in step.recorded:
            step.outputs[slot.value] = step.recorded[slot].numbers()
            return
        found = None
        if slot.is_input and step.batch is not None:
            with suppress(LookupError):  # of a pass whose order is not known any more
                tensors = (x for x in tree_leaves(step.batch()) if isinstance(x, torch.Tensor))
                found = list(tensors)[slot.value.number]
        if found is None:
            found = self._run.replay.value(step, slot.value)
        if found is not None:
            step.outputs[slot.value] = found

    def _take_recorded(self, step: StepOutputs) -> None:
        """Take the loss of a step that began on tokens and was recorded after all."""
        if step.recorded is None or step.loss is not None:
            return
        loss = next((slot for slot in step.recorded if slot.is_loss), None)
        if loss is not None:
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
        if self._in_a_row != READ_IN_A_ROW:
            return
        line, warned = user_line(), self._run.lines_warned_of_reads
        if line not in warned:
            warned.add(line)
            log.warning(
                f"{line}: the loop reads a value in each step, so that no step is run "
                "ahead: read one every 50 steps to have up to 256 steps in one order"
            )
