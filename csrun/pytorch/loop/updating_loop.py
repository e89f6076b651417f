"""Loop of a Session with several models or optimizers: its steps are recorded with their updates.

The updates are operators of the step. A step may therefore update one model and compute with it,
call backward() several times, and use any optimizer.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.pytorch.errors import call_for_user, is_users_call, user_line
from csrun.pytorch.loop import mismatch
from csrun.pytorch.loop.host_updates import update_on_host
from csrun.pytorch.loop.left_gradients import UnclearedSum, uncleared_error
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.optimizer_calls import OptimizerCalls
from csrun.pytorch.loop.optimizer_hooks import has_step_hooks
from csrun.pytorch.loop.recorded_gradients import slot_of
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.scaled_loss import ScaledLoss
from csrun.pytorch.loop.session_loop import SessionLoop
from csrun.pytorch.loop.token_updates import TokenUpdates, how_of, params_of
from csrun.pytorch.loop.updating_step import UpdatingStep
from csrun.pytorch.optimizers.optimization import needs_closure
from csrun.pytorch.optimizers.repeated_updates import is_repeatable
from csrun.pytorch.optimizers.trained_groups import TrainedGroup
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import UPDATE, carried
from csrun.pytorch.step.loop_writes import is_of_attributes, is_write
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.step_status import StepPhase
from csrun.pytorch.step.tokens import LazyTensor, Token
from csrun.pytorch.step.variant import StepVariant


class UpdatingLoop(SessionLoop):
    """Such a loop. A step ends with the next batch or, if the loop makes the batches itself, with
    the first call after all updates.

    Raises: UsageError in mixed precision, which would round the optimizers' tensors
    """

    RECORDED: ClassVar[type[RecordedStep]] = UpdatingStep
    HAS_UPDATES: ClassVar = True
    TAKES_ARGUMENTS: ClassVar = True
    _model: TrainedGroup

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scaled_loss = ScaledLoss(self._run, None)  # no effect in float32
        if self.scaled_loss.half is not None:
            raise UsageError(
                f"{self._line}: a Session with several models or optimizers, or with an optimizer "
                "that has no rule in csrun, updates in the precision of the step: leave precision "
                f"{self._run.run.config.precision} out"
            )
        self._earlier: list[tuple[torch.Tensor, Any]] = []  # gradients during backward()
        self._token_updates = TokenUpdates(self, self._model)
        self._optimizer_calls = OptimizerCalls(self)

    @property
    def _open_step(self) -> UpdatingStep | None:
        step = self._step
        if step is None or step.status.is_over or not isinstance(step.recorded, UpdatingStep):
            return None
        return step.recorded

    @property
    def _on_tokens(self) -> LoopStep | None:
        """The open step, if it is not recorded."""
        step = self._step
        is_other = step is None or step.status.is_over or step.recorded is not None
        return None if is_other else step

    def _is_recorded_again(self, variant: StepVariant) -> bool:
        if not variant.trains or not any(x.name == UPDATE for x in variant.shape.calls):
            return True
        is_hooked = self._revalidations.has_other_hooks(variant)
        return is_hooked or bool(self._revalidations.reason(variant.shape))

    def _record(self, *given: Any, **options: Any) -> RecordedStep:
        recorded = super()._record(*given, **options)
        assert isinstance(recorded, UpdatingStep), "of this loop"
        recorded.after_backward(self._end_gradients)
        return recorded

    def _learn(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> None:
        super()._learn(step, recorded, mode)
        assert step.variant is not None, "learned"
        is_other = step.variant.shape.unknown_operands or not recorded.graph.are_written_by_updates
        if mode is RunMode.TRAIN and is_other:
            cause = f"{self._line}: the loop computes with weights, or edits gradients"
            self._variants.record_all(recorded, cause)

    def _record_after_all(self, cause: str) -> RecordedStep | None:
        now, step = self._token_updates.gradients(), self._step
        with ExitStack() as opened:
            if step is not None and step.modes is not None:  # each call is repeated in its own
                opened.enter_context(self._modes.kept_as(step.modes))
            recorded = super()._record_after_all(cause)
        if recorded is not None:
            self._token_updates.set_traced(now, recorded.traced)
        return recorded

    def _leave_tokens(self, step: LoopStep, cause: str) -> None:
        """End a step on tokens if it is complete, else record it.

        Raises: UsageError if it cannot be recorded
        """
        if step.expected is None:
            self._end_on_tokens(step)
        elif self._record_after_all(cause) is None:
            raise mismatch.left_early(step)

    def _end_on_tokens(self, step: LoopStep) -> None:
        self._run.updates += 1
        step.status.enter(StepPhase.OVER)
        self._queue(step, ())
        step.calls.clear()

    def settle_updates(self) -> None:
        """Make the store have the weights of the script's current line."""
        step = self._on_tokens
        if step is not None and step.calls and step.expected is None:
            self._end_on_tokens(step)
        elif step is not None and any(x.expected.name == UPDATE for x in step.calls):
            raise UsageError(
                f"{user_line()}: the state of the model or optimizer is read between the model's "
                "call and optimizer.step(): read it after optimizer.step()"
            )

    def run_early(self, outputs: StepOutputs, *, with_update: bool = False) -> None:
        """Queue the current step, if it has these outputs: it is recorded unless all of its calls
        are made.
        """
        step = self._on_tokens
        if step is not None and step.outputs is outputs:
            if step.expected is None:
                self._weight_calls.end()  # which would see the run's own calls
            self._leave_tokens(step, "")

    def _match_weight_call(
        self, name: str, func: Any, args: Any, kwargs: Any, leaves: list[Any], how: tuple[Any, ...]
    ) -> Any:
        """End or record a step on tokens of which the loop reads or writes a weight."""
        if is_of_attributes(func) or not any(map(self.watch.name_of, leaves)):
            return None
        if not is_users_call(above=4):  # of the mode
            return None
        step = self._on_tokens
        if step is not None and step.calls:
            self._leave_tokens(step, mismatch.cause_of_loss(step))
        if self._open_step is not None:
            return call_for_user(func, args, kwargs)
        if is_write(func) and any(map(self.watch.name_of, leaves_of(args[:1], {}))):
            return self.write_weight(func, args, kwargs)
        self.watch.bring_up_to_date(leaves)
        return None

    def _call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves = leaves_of(args, kwargs)
        if (step := self._on_tokens) is not None:
            found = self._match_model_call(step, args, kwargs, leaves)
            if found is not None:
                return found
            if self._is_host_call(leaves) and step.expected is None:
                self._end_on_tokens(step)
            elif self._record_after_all(mismatch.cause_of_call(step)) is None:
                raise mismatch.left_early(step)
        return self._record_call(args, kwargs)

    def _record_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorded, leaves = self._open_step, leaves_of(args, kwargs)
        if recorded is not None and self._is_done(recorded, leaves):
            self.end_step()
            recorded = None
        if recorded is None and self._is_host_call(leaves):
            return self._host_calls.call(args, kwargs, is_in_step=False)
        if recorded is None:
            self._begin_step(*self._script_steps.begin(leaves))
            recorded = self._open_step
            assert recorded is not None, "begun"
            args, kwargs = tree_map(carried, (args, kwargs))
        args, kwargs = recorded.calls.carried(recorded.traced((args, kwargs)))
        mismatch.require_usable(leaves_of(args, kwargs), None)
        return recorded.call(self._forward, args, kwargs, *self._state())

    def _is_done(self, recorded: UpdatingStep, leaves: list[Any]) -> bool:
        """True if a call of a model begins another step, for batches that the loop makes."""
        assert self._step is not None, "it is open"
        is_updated = all(not recorded.updated.isdisjoint(one) for one in self._model.families)
        return self._step.batches.is_pushed and is_updated and not any(map(recorded.is_of, leaves))

    def update(
        self, optimizer: torch.optim.Optimizer, own: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Handle the loop's call of an optimizer's step()."""
        if self._optimizer_calls.is_open:  # in the step of an optimizer that wraps it
            self._optimizer_calls.note(optimizer)
            return own(*args, **kwargs)
        if (step := self._on_tokens) is not None:
            is_plain = not (args or kwargs) and not has_step_hooks(optimizer)
            if is_plain and self._token_updates.update(step, optimizer, own):
                return None
            self._record_update(step)
        closure = next(filter(callable, (*args, *kwargs.values())), None)
        if needs_closure(optimizer):
            return update_on_host(self, optimizer, own, closure)
        if closure is None:
            self.require_step()
        else:
            if self._open_step is not None and self._is_done(self._open_step, []):
                self.end_step()
            called = self._optimizer_calls.within(closure)
            args = [called if x is closure else x for x in args]
            kwargs = {name: called if x is closure else x for name, x in kwargs.items()}
        is_expected = closure is None and is_repeatable(optimizer) and not has_step_hooks(optimizer)
        if not is_expected:
            made = self._make_step(optimizer, own, args, kwargs, has_gradients=closure is None)
            if (open_step := self._open_step) is not None:
                open_step.note_other_update(f"{type(optimizer).__name__}'s update runs as written")
            return made
        recorded, params = self.require_step(), params_of(optimizer)
        self._require_own_gradients(recorded, optimizer)
        before = recorded.calls.states_of(params)
        result = self._make_step(optimizer, own, args, kwargs, has_gradients=True)
        how = how_of(self._model.optimizers.index(optimizer), params)
        recorded.calls.note_update(how, before)
        return result

    def _make_step(
        self, optimizer: torch.optim.Optimizer, own: Callable[..., Any], args: Any, kwargs: Any,
        *, has_gradients: bool,
    ) -> Any:  # fmt: skip
        with self._optimizer_calls.of(optimizer, has_gradients=has_gradients):
            return call_for_user(own, args, kwargs)

    def _record_update(self, step: LoopStep) -> None:
        """Record a step on tokens in which an optimizer makes another step."""
        cause = f"{user_line()}: optimizer.step() is not called as in step 1"
        if step.calls and self._record_after_all(cause) is None:
            raise UsageError(f"{cause}, and a value of the step was read: read it later")

    def backward(self, token: LazyTensor) -> None:
        """Handle the loop's call of `backward()`."""
        step = self._on_tokens
        if step is not None and self._token_updates.backward(step, token):
            return
        super().backward(token)

    def require_step(self) -> UpdatingStep:
        """Return the open step. Raises: UsageError if there is none"""
        recorded = self._open_step
        if recorded is None:
            raise UsageError(
                f"{user_line()}: optimizer.step() is called outside of a step: call a model of "
                "the Session before it"
            )
        return recorded

    def begin_update(
        self, optimizer: torch.optim.Optimizer, has_gradients: bool
    ) -> UpdatingStep | None:
        """Create the state of parameters with new gradients; return the open step, if any.

        Raises: UsageError for gradients of an earlier step
        """
        recorded = self._open_step
        if recorded is not None and has_gradients:
            self._require_own_gradients(recorded, optimizer)
            with unrecorded():
                has_new = self._model.updates.create_missing(optimizer)
            if has_new:
                recorded.take_states()
                self.watch.begin()
        return recorded

    def run_step(self, values: Sequence[TracedTensor]) -> list[torch.Tensor]:
        """End the step, without an update, and return numbers of its values."""
        recorded, step = self._open_step, self._step
        assert recorded is not None, "it is open"
        assert step is not None, "it is open"
        recorded.have_returned(values)
        self.end_step()
        if not recorded.graph.has_same_numbering:
            return [value.numbers() for value in values]
        slots = [slot_of(recorded.recording, value.value) for value in values]
        return [self.readback.read(step.outputs, replace(x, is_gradient=False)) for x in slots]

    def _require_own_gradients(
        self, recorded: UpdatingStep, optimizer: torch.optim.Optimizer
    ) -> None:
        """Raises: UsageError for gradients of an earlier step"""
        params = (p for group in optimizer.param_groups for p in group["params"])
        with torch._C.DisableTorchFunction():
            are_other = any(_is_of_other(p.grad, recorded) for p in params)
        if are_other:
            raise uncleared_error()

    def clear(
        self, params: Iterable[torch.Tensor], own: Callable[[bool], None], is_none: bool
    ) -> None:
        """Handle the loop's call of zero_grad() of an optimizer or a model."""
        recorded = self._open_step
        with torch._C.DisableTorchFunction():  # these reads of gradients are not the loop's
            params = list(params)
            tokens = self._on_tokens
            outputs = None if tokens is None else tokens.outputs
            others = [p for p in params if _is_of_other(p.grad, recorded, outputs)]
            for parameter in others:
                parameter.grad = None if is_none else torch.zeros_like(parameter)
            if is_none:
                own(is_none)
                return
        own(is_none)

    def load_state(self, optimizer: torch.optim.Optimizer, load: Callable[[], None]) -> None:
        """Handle the loop's call of `optimizer.load_state_dict`, by `load`.

        Raises: UsageError after the block's first step
        """
        if self.has_begun:
            raise UsageError(
                f"{user_line()}: load_state_dict of the optimizer must be called before the first "
                "step of the Session's block: from then on the run's store has the state"
            )
        load()
        self._model.states.take_loaded(optimizer)

    def forget_gradients(self) -> None:
        """Remove traced gradients from the parameters."""
        for parameter in self._trainable:
            if isinstance(parameter.grad, TracedTensor | LazyTensor):
                parameter.grad = None

    def _begin_gradients(self) -> frozenset[str]:
        recorded = self._open_step
        with torch._C.DisableTorchFunction():
            found = ((p, p.grad) for p in self._trainable)
            self._earlier = [(p, grad) for p, grad in found if _is_of_other(grad, recorded)]
            for parameter, _ in self._earlier:
                parameter.grad = None
        assert self._step is not None, "of a recorded step"
        if self._step.status.phase is not StepPhase.BACKWARD:
            self._step.status.enter(StepPhase.BACKWARD)
        return frozenset()

    def _end_gradients(self) -> None:
        """Restore gradients of earlier steps; a sum with one of this step cannot be read."""
        with torch._C.DisableTorchFunction():
            for parameter, gradient in self._earlier:
                is_sum = parameter.grad is not None
                parameter.grad = UnclearedSum(parameter) if is_sum else gradient
        self._earlier.clear()

    def _leave_step(self) -> None:
        self._weight_calls.end()
        self._weight_calls.remove()
        if (tokens := self._on_tokens) is not None and tokens.calls:
            self._leave_tokens(tokens, f"{user_line()}: a step ends before its last call of step 1")
        recorded, step = self._open_step, self._step
        self._step = None
        if recorded is None:
            return
        assert step is not None, "it is open"
        recorded.close()
        mode = RunMode.TRAIN if recorded.has_loss else RunMode.EVAL
        if recorded.calls.found:  # otherwise nothing was done with the batch
            self._run.updates += recorded.has_loss
            recorded.take_new_states()
            self._learn(step, recorded, mode)
            step.status.enter(StepPhase.OVER)
            self._queue(step, ())
            recorded.fill_created()
        else:
            step.status.enter(StepPhase.OVER)


def _is_of_other(
    gradient: Any, recorded: UpdatingStep | None, tokens: StepOutputs | None = None
) -> bool:
    """True for a gradient of another step than the open one. tokens: its values, if it is on
    tokens.
    """
    if isinstance(gradient, LazyTensor):
        return not (isinstance(gradient, Token) and tokens is not None and gradient.step is tokens)
    return isinstance(gradient, TracedTensor) and (recorded is None or not recorded.is_of(gradient))
