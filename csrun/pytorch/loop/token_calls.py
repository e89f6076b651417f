"""The loop's calls of the model, and of PyTorch's functions on tokens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.half_types import is_own_cast, may_cast
from csrun.pytorch.loop import call_order, mismatch
from csrun.pytorch.loop.host_eval import later, now
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.loop_steps import LoopSteps
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.functions.ctc_loss import is_ctc_loss, with_padded_targets
from csrun.pytorch.step.loop_calls import MODEL, carried, name_of
from csrun.pytorch.step.loop_writes import is_write, writes_outside
from csrun.pytorch.step.tokens import Token, tensor_of, token_of
from csrun.pytorch.step.variant import StepVariant


class TokenCalls(LoopSteps):
    """A loop: its calls on tokens."""

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
        if is_first and not self.HAS_UPDATES:  # of which whole steps are recorded again
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
