"""Loop of a Session with several models or optimizers: each step is recorded with its updates.

The updates are operators of the step. A step may therefore update one model and compute with it,
call backward() several times, and use any optimizer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.loop import mismatch
from csrun.pytorch.loop.host_updates import update_on_host
from csrun.pytorch.loop.optimizer_calls import OptimizerCalls
from csrun.pytorch.loop.recorded_gradients import slot_of
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.scaled_loss import ScaledLoss
from csrun.pytorch.loop.session_loop import SessionLoop
from csrun.pytorch.loop.updating_step import UpdatingStep
from csrun.pytorch.optimizers.optimization import needs_closure
from csrun.pytorch.optimizers.trained_groups import TrainedGroup
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedStorage, TracedTensor
from csrun.pytorch.step.expected_calls import carried
from csrun.pytorch.step.step_status import StepPhase


class UpdatingLoop(SessionLoop):
    """Such a loop. A step ends with the next batch or, if the loop makes the batches itself, with
    the first call after all updates.

    Raises: UsageError in mixed precision, which would round the optimizers' tensors
    """

    RECORDED: ClassVar[type[RecordedStep]] = UpdatingStep
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
        self._earlier: list[tuple[torch.Tensor, TracedTensor]] = []  # gradients during backward()
        self._optimizer_calls = OptimizerCalls(self)

    @property
    def _open_step(self) -> UpdatingStep | None:
        step = self._step
        if step is None or step.status.is_over or not isinstance(step.recorded, UpdatingStep):
            return None
        return step.recorded

    def _record(self, *given: Any, **options: Any) -> RecordedStep:
        recorded = super()._record(*given, **options)
        assert isinstance(recorded, UpdatingStep), "of this loop"
        recorded.after_backward(self._end_gradients)
        return recorded

    def _call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        args, kwargs = recorded.calls.carried((args, kwargs))
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
        with self._optimizer_calls.of(optimizer, has_gradients=closure is None):
            return call_for_user(own, args, kwargs)

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
            raise _uncleared_error()

    def clear(
        self, params: Iterable[torch.Tensor], own: Callable[[bool], None], is_none: bool
    ) -> None:
        """Handle the loop's call of zero_grad() of an optimizer or a model."""
        recorded = self._open_step
        with torch._C.DisableTorchFunction():  # these reads of gradients are not the loop's
            params = list(params)
            others = [p for p in params if _is_of_other(p.grad, recorded)]
        for parameter in others:
            parameter.grad = None if is_none else torch.zeros_like(parameter)
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
            if isinstance(parameter.grad, TracedTensor):
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
                parameter.grad = _unreadable(gradient) if is_sum else gradient
        self._earlier.clear()

    def _leave_step(self) -> None:
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


def _is_of_other(gradient: Any, recorded: UpdatingStep | None) -> bool:
    """True for a gradient of another step than the open one."""
    return isinstance(gradient, TracedTensor) and (recorded is None or not recorded.is_of(gradient))


class _UnclearedSum(TracedTensor):
    """Sum of gradients of two steps, which no step has computed; it can only be cleared."""

    @property
    def became(self) -> Any:  # read by each use of a finished step's value
        """Raises: UsageError"""
        raise _uncleared_error()


def _unreadable(gradient: TracedTensor) -> TracedTensor:
    """Return a gradient of an earlier step whose reads and edits are refused."""
    return _UnclearedSum(gradient.like, gradient.value, TracedStorage(), gradient.recorder)


def _uncleared_error() -> UsageError:
    return UsageError(
        f"{user_line()}: a gradient belongs to an earlier step: call zero_grad() in each step of "
        "a Session with several models or optimizers"
    )
