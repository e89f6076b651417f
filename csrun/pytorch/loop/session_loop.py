"""The loop of a Session: its calls on the optimizer, the loss and gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import Edit, StepEdits
from csrun.pytorch.loop import call_order, mismatch
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.recorded_gradients import ReturnedGradients
from csrun.pytorch.loop.token_calls import TokenCalls
from csrun.pytorch.step.queued_step import QueuedWork
from csrun.pytorch.step.step_outputs import FindGradients, StepOutputs
from csrun.pytorch.step.step_status import StepPhase
from csrun.pytorch.step.tokens import LazyTensor, Token
from csrun.pytorch.step.variant import StepVariant


class SessionLoop(TokenCalls):
    """A loop: `backward()`, `optimizer.step()`, and reads of values."""

    def optimizer_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Handle the loop's call of `optimizer.step()`; return the closure's result."""
        result = None
        if closure is not None:
            assert self._optimization is not None, "taken over of a training"
            self._optimization.require_plain_closure()
            with torch.enable_grad():
                result = closure()
        self._update()
        return result

    def _update(self) -> None:
        optimization = self._optimization
        assert optimization is not None, "taken over of a training"
        self._run.updates += 1
        if self._step is None and (left := self._accumulation.take_left()):
            self._take_groups()
            self._queue(left, optimization.numbers(left.updated), QueuedWork.UPDATE)
            optimization.count(left.updated, self._run.flush)
            return
        step = call_order.step_of(self._step)
        recorded = step.recorded
        if optimization.has_new_groups:
            self._take_groups()
        if recorded is not None:
            self._record_if_numbers_change(step, recorded)
        if recorded is None:
            self._edit(step, self._gradients.end())
        elif recorded.is_finished:
            recorded.close()
            if self._gradients.end_recorded().are_written:
                raise call_order.edited_too_late()
        else:
            recorded.close()
            self._end_recorded(step, recorded)
        if step.place:
            self._accumulation.require(step)
        updated = step.updated
        numbers = optimization.numbers(updated)
        step.status.enter(StepPhase.OVER)
        step.calls.clear()
        if not step.status.is_queued:
            self._queue(step, numbers)
        elif self._run.accumulates and not step.is_updated:  # its gradients are computed
            self._queue(step, numbers, QueuedWork.UPDATE)
        else:
            call_order.require_same_numbers(step, numbers)
        optimization.count(updated, self._run.flush)
        if recorded is not None:
            recorded.fill_created()

    def note_group(self, group: Mapping[str, Any]) -> None:
        """Handle the loop's call of `optimizer.add_param_group`."""
        self._gradients.note_added(group["params"])

    def _edit(self, step: LoopStep, edits: StepEdits) -> None:
        """Switch to the variant with the loop's edits of the gradients."""
        assert step.variant is not None, "the step has a variant"
        variant = self._variants.edited(step.variant, edits)
        if variant is not step.variant:
            self._switch(step, variant)
        if edits.all or edits.assigned:
            step.outputs.norm_edit = partial(self._variants.norm_edit, variant, edits)

    def _switch(self, step: LoopStep, variant: StepVariant) -> None:
        """Switch to a variant with other edits. Raises: UsageError if it has run without them"""
        assert step.variant is not None, "the step has a variant"
        is_open = self._run.accumulates and not step.is_updated
        if not (is_open and self._accumulation.are_of_sums(step.variant, variant)):
            call_order.require_same_edits(step, variant)
        step.variant = variant

    def _edit_early(self, step: LoopStep) -> None:
        """Switch to the variant with the edits that the loop is expected to make."""
        assert step.variant is not None, "the step has a variant"
        if not self._gradients.may_be_edited_otherwise:
            self._edit(step, self._gradients.so_far())
            return
        edits = self._gradients.up_to_last_write()
        self._switch(step, self._variants.begun(step.variant, edits))

    def backward(self, token: LazyTensor) -> None:
        """Handle the loop's call of `backward()`."""
        step = self._step
        if step is not None and step.recorded is not None:  # it began on tokens
            if not step.recorded.backward(token):
                raise mismatch.another_loss(step, token)
            return
        loss = step.variant.shape.loss if step is not None and step.variant is not None else None
        is_loss = isinstance(token, Token) and loss is not None and token.slot is loss
        if step is None or not is_loss or token.step is not step.outputs:
            error = mismatch.another_loss(step, token)
            recorded = self._record_after_all(mismatch.cause_of_loss(step))
            if recorded is None or not recorded.backward(token):
                raise error
            return
        if step.status.has_gradients or step.status.is_over:
            raise UsageError(f"{user_line()}: backward() must be called once for each batch")
        assert step.variant is not None, "it has the loss"
        if self._revalidations.has_other_hooks(step.variant):
            cause = f"{user_line()}: hooks of gradients have changed"
            if (recorded := self._record_after_all(cause)) is None:
                raise call_order.hooked_too_late(cause)
            recorded.backward(token)
            return
        self._begin_lazy_gradients(step, step.variant)

    def _begin_lazy_gradients(self, step: LoopStep, variant: StepVariant) -> None:
        """Have the loop find gradients without values, as `backward()` of a step on tokens."""
        gradients, names = self._gradients, variant.recording.first_gradients
        if variant.constants:  # a tensor may be written between two calls
            variant.require_constants(self.watch.writes)
        if self._weight_calls.is_on:
            self._weight_calls.end()
        self.scaled_loss.begin_backward()
        place = gradients.added_to()
        if place != step.place:
            call_order.require_not_queued(step)
            step.place = place
        gradients.require_same_zeros(variant.recording)
        if place:
            gradients.require_same(names)
        if step.revalidation is not None:
            gradients.discard_lazy()
            step.revalidation.backward()
        gradients.begin(names, step.outputs, None if place else self._finder_of(variant))
        step.status.enter(StepPhase.BACKWARD)

    def _finder_of(self, variant: StepVariant) -> FindGradients:
        """Return the function that returns gradients of a variant's steps."""
        if self._finder is None or self._finder[0] is not variant:
            first = partial(ReturnedGradients, self.readback, variant)
            self._finder = variant, self._gradients.finder(first)
        return self._finder[1]

    def norm_edit_of(self, outputs: StepOutputs) -> Edit | None:
        """Return the edit of a step that computes the norm by which all gradients are clipped."""
        step = self._step
        if step is not None and step.outputs is outputs and not step.status.is_over:
            assert step.variant is not None, "it has gradients"
            return self._variants.norm_edit(step.variant, self._gradients.up_to_last_write())
        return None if outputs.norm_edit is None else outputs.norm_edit()

    def run_early(self, outputs: StepOutputs, *, with_update: bool = False) -> None:
        """Queue the current step before `optimizer.step()`, if it is this one."""
        step, optimization = self._step, self._optimization
        if step is None or step.outputs is not outputs or step.status.is_over:
            return
        if with_update:
            self._update_early(step)
        if step.status.is_queued:
            return
        if step.lacks_tensors:
            self._record_for_read()
        elif optimization is None or not step.trains:
            self._queue(step, ())
        elif self._run.accumulates:
            self._take_groups()
            if not step.status.has_gradients:
                step.place = self._gradients.added_to() if self._gradients.batches else 0
            self._queue(step, (), QueuedWork.BATCH)
        else:
            self._take_groups()
            self._queue(step, optimization.numbers(step.updated))

    def _record_for_read(self) -> None:
        """Record the current step after all, because a value is read before all of its inputs are
        known.

        Raises: UsageError if it cannot be recorded
        """
        cause = f"{user_line()}: a value is read before the loop has given all tensors of its step"
        if self._record_after_all(cause) is None:
            raise UsageError(f"{cause}, which have changed since: read it after the loss")

    def _update_early(self, step: LoopStep) -> None:
        """Queue the current step with its update, after the loop's edits of gradients."""
        if step.is_updated:
            return
        assert self._optimization is not None, "of a training"
        if step.recorded is None:
            self._edit_early(step)
        if step.place:
            self._accumulation.require(step)
        self._take_groups()
        numbers, step.is_updated = self._optimization.numbers(step.updated), True
        if not step.status.is_queued:
            self._queue(step, numbers)
        elif self._run.accumulates:
            step.numbers = numbers
            self._queue(step, numbers, QueuedWork.UPDATE)

    def zero_grad(self, own: Callable[[bool], None], set_to_none: bool) -> None:
        """Handle the loop's call of `optimizer.zero_grad()`."""
        step = self._step
        has_gradients = step is not None and step.status.has_gradients
        with torch._C.DisableTorchFunction():  # these reads of gradients are not the loop's
            if has_gradients or not self._gradients.clear(set_to_none):
                own(set_to_none)

    def summarize(self, name: str, value: Any) -> None:
        """Write a number of this step into the run's events."""
        call_order.require_training(self._run.users.optimization)
        number = float(value.item() if hasattr(value, "item") else value)
        self._run.flush()
        self._run.summarize(name, number)
