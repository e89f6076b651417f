"""The loop of a Session: its calls on the model, the optimizer, the loss and tokens."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.gradients.edits import Edit, StepEdits
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.half_types import is_own_cast, may_cast
from csrun.pytorch.loop import call_order, mismatch
from csrun.pytorch.loop.host_eval import later, now
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.loop_steps import LoopSteps
from csrun.pytorch.loop.recorded_gradients import ReturnedGradients
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.functions.ctc_loss import is_ctc_loss, with_padded_targets
from csrun.pytorch.step.expected_calls import MODEL, carried, name_of
from csrun.pytorch.step.loop_writes import is_write, writes_outside
from csrun.pytorch.step.queued_step import QueuedWork
from csrun.pytorch.step.step_outputs import FindGradients, StepOutputs
from csrun.pytorch.step.step_status import StepPhase
from csrun.pytorch.step.tokens import LazyTensor, Token, tensor_of, token_of
from csrun.pytorch.step.variant import StepVariant

log = logging.getLogger("csrun")


class SessionLoop(LoopSteps):
    """A loop: its batches, `backward()`, `optimizer.step()`, and calls on tokens."""

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

    # Calls on tokens.

    def call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle the loop's call of the model."""
        return late_calls.released(self._call_model(args, kwargs))

    def _call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step, leaves = self._step, leaves_of(args, kwargs)
        if self._is_host_call(leaves):
            is_in_step = step is not None and not step.status.is_over
            return self._host_calls.call(args, kwargs, is_in_step=is_in_step)
        if self._script_steps.begins(step, leaves):
            self._begin_step(*self._script_steps.begin(leaves))
            step = self._step
            args, kwargs = tree_map(carried, (args, kwargs))
            leaves = leaves_of(args, kwargs)
        if step is not None and step.recorded is not None:
            mismatch.require_open(step)
            args, kwargs = step.recorded.calls.carried(step.recorded.traced((args, kwargs)))
            mismatch.require_usable(leaves_of(args, kwargs), None)
            results = step.recorded.call(self._forward, args, kwargs, *self._state())
            if step.recorded.has_new_buffers:
                self.watch.begin()
            return results
        if step is not None and step.is_revalidating:  # by its own forward
            return call_for_user(self._forward, args, kwargs)
        found = None if step is None else self._match_model_call(step, args, kwargs, leaves)
        if found is not None:
            return found
        mismatch.require_usable(leaves, step.outputs if step else None)
        modes, state = self._state()
        is_other = step is not None and state != step.guards
        is_changed = is_other or (step is not None and modes != step.modes)
        recorded = self._record_after_all("" if is_changed else mismatch.cause_of_call(step))
        if recorded is not None:
            args, kwargs = recorded.calls.carried(recorded.traced((args, kwargs)))
            return recorded.call(self._forward, args, kwargs, modes, state)
        if is_other:
            raise call_order.changed_too_late(self._guards.changed)
        raise mismatch.another_call(step, args, kwargs)

    def _match_model_call(
        self, step: LoopStep, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """Return the results of the matching call of the model in step 1, else None."""
        modes, state = self._state()
        if step.variant is not None and not step.calls and not step.status.is_over:
            is_other = step.variant.shape.modes != modes or step.guards != state
            if is_other and not self._is_switched(step, step.variant, modes, state):
                return None
            step.guards = state
        how = (tuple(kwargs), modes, None if state == step.guards else state)
        found = self._match_call(MODEL, self._forward, args, kwargs, leaves, how)
        if found is None and step.has_other_shapes and not step.calls:
            for variant in self._variants.alike((step.batches.loader, step.rows, modes, state)):
                step.take_variant(variant)
                found = self._match_call(MODEL, self._forward, args, kwargs, leaves, how)
                if found is not None:
                    break
        return found

    def _is_switched(
        self, step: LoopStep, variant: StepVariant, modes: tuple[bool, ...], state: int
    ) -> bool:
        """Switch to the variant for the current modes and guards, after the batch.

        False if that is not known.
        """
        expected = variant.shape.modes
        if expected is None or (modes == expected and state == step.guards):
            return True
        found = self._variants.switched(step.batches.loader, step.rows, modes, state)
        if found is not None:
            step.take_variant(found)
        return found is not None

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Handle a call of a PyTorch function on tokens."""
        if may_cast(func) and is_own_cast(func, args, kwargs):
            return args[0]
        if is_ctc_loss(func):
            func, args, kwargs = with_padded_targets(func, args, kwargs)
        leaves, how = leaves_of(args, kwargs), tuple(kwargs)
        found = self._match_call(name_of(func), func, args, kwargs, leaves, how)
        if found is None:
            return self._later(func, args, kwargs)
        # all holders of the token see the new value
        if is_write(func) and isinstance(args[0], Token):
            args[0].rebind(found)
            return args[0]
        return found

    def _later(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a lazy result; a write into the loop's own tensors is made at once."""
        leaves = leaves_of(args, kwargs)
        if any(isinstance(leaf, Gradient) for leaf in leaves):
            return Gradient.__torch_function__(func, (), args, kwargs)
        if is_write(func) and self.watch.name_of(args[0]) and self._is_between_steps:
            args, kwargs = tree_map(tensor_of, (args, kwargs))  # a write of the loop between steps
            return self.write_weight(func, args, kwargs)
        if self._may_take_weights and any(map(self.watch.name_of, leaves)):
            return self._on_weights(func, args, kwargs)
        self.watch.require_none(func, leaves)
        if writes_outside(func, args):
            return self._at_once(func, args, kwargs)
        is_other = mismatch.is_written(self._step, func, args)
        if is_other and self._record_after_all(mismatch.cause_of_loss(self._step)) is not None:
            return call_for_user(func, args, kwargs)
        return later(self, func, args, kwargs, self._at_once)

    def _on_weights(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a function of weights on the host."""
        # before the weights: reading them runs the step
        args, kwargs = tree_map(tensor_of, (args, dict(kwargs)))
        self.watch.bring_up_to_date(leaves_of(args, kwargs))
        with torch.no_grad():
            return call_for_user(func, args, kwargs)

    @property
    def _may_take_weights(self) -> bool:
        """True if the host may compute on weights: after the update, and in an evaluation."""
        is_evaluation = self._step is not None and not self._step.trains
        return not torch.is_grad_enabled() and (self._is_between_steps or is_evaluation)

    @property
    def _is_between_steps(self) -> bool:
        return self._step is None or self._step.status.is_over

    def _at_once(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a result whose shape depends on values, or write into the loop's own tensor.

        If it may be needed for the loss the step is recorded, unless the loop uses such results for
        metrics.
        """
        step, is_written = self._step, writes_outside(func, args)
        if step is None or not step.may_lead_to_loss(args, kwargs):
            return now(self, func, args, kwargs)
        if is_written and user_line() in self._untracked.lines:
            self._untracked.note(args[0])
            return now(self, func, args, kwargs)
        recorded = self._record_after_all(mismatch.cause_of_loss(step))
        if recorded is None:
            return now(self, func, args, kwargs)
        if is_written:
            recorded.calls.take(args[0])
        return call_for_user(func, args, kwargs)

    def _match_call(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        leaves: list[Any],
        how: tuple[Any, ...],
    ) -> Any:
        """Return the results of the matching call of step 1, else None."""
        step = self._step
        expected = None if step is None else step.expected
        if step is None or step.variant is None or expected is None:
            return None
        if not expected.is_called(name, leaves, how, step.outputs):
            if name == expected.name and name != MODEL:
                step.mismatch = f" ({name} in {user_line()} is not called as it was)"
            return None
        is_first = not step.calls
        if is_first and step.find_change(self.watch.writes):
            return None
        if not step.note(expected, func, args, kwargs, leaves):
            return None
        if is_first:
            batch = step.outputs.batch
            step.revalidation = self._revalidations.begun(step.variant, step.guards, batch)
        if step.revalidation is not None:
            step.revalidation.call(expected, func, args, kwargs)
        if expected.is_one:
            return token_of(self, step.outputs, expected.results)
        return expected.tokens(self, step.outputs)

    def _match_weight_call(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        leaves: list[Any],
        how: tuple[Any, ...],
    ) -> Any:
        """Return the results of the matching call of step 1 on weights, else None.

        If an earlier call of the loss has differed, the step is recorded, and so is this call.
        """
        found = self._match_call(name, func, args, kwargs, leaves, how)
        step = self._step
        if found is not None or step is None or not (step.mismatch and torch.is_grad_enabled()):
            return found
        if self._record_after_all(mismatch.cause_of_loss(step)) is None:
            return None
        return call_for_user(func, args, kwargs)

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
        if has_gradients or not self._gradients.clear(set_to_none):
            own(set_to_none)

    def summarize(self, name: str, value: Any) -> None:
        """Write a number of this step into the run's events."""
        call_order.require_training(self._run.users.optimization)
        number = float(value.item() if hasattr(value, "item") else value)
        self._run.flush()
        self._run.summarize(name, number)
