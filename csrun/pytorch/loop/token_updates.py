"""`backward()` and `optimizer.step()` of a step on tokens that has its own updates.

Both are expected calls of the step. `backward()` takes the gradients that exist, and returns all
gradients; `step()` takes gradients, and changes weights, which only the program sees.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from csrun.pytorch.loop.left_gradients import LeftGradient, UnclearedSum, state_of
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.optimizers.repeated_updates import (
    HostState,
    OtherUpdateError,
    UpdateNumbers,
    options_as,
    options_of,
)
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.loop_calls import BACKWARD, UPDATE
from csrun.pytorch.step.step_outputs import Owner, StepOutputs
from csrun.pytorch.step.tokens import LazyTensor, Token
from csrun.pytorch.step.variant import StepVariant

Gradients = list[tuple[torch.Tensor, Any]]
OwnStep = Callable[..., Any]  # an optimizer's own step()


class RecordingUpdates(Owner, Protocol):
    """The loop, as used here."""

    def update(self, optimizer: torch.optim.Optimizer, own: OwnStep, args: Any, kwargs: Any) -> Any:
        """Handle the loop's call of an optimizer's step()."""


def params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def how_of(number: int, params: Iterable[torch.Tensor]) -> tuple[Any, ...]:
    """Return what is compared of an optimizer's step besides the gradients."""
    return number, *map(id, params)


class TokenUpdates:
    """Gradients and updates of a loop's steps on tokens."""

    def __init__(self, loop: RecordingUpdates, group: ModelGroup) -> None:
        self._loop, self._group = loop, group
        self._params = list(group.parameters())
        self._left: Gradients = []  # gradients before the step's first call here
        self._updates: dict[tuple[StepVariant, int], UpdateNumbers] = {}  # by first operator

    def backward(self, step: LoopStep, token: LazyTensor) -> bool:
        """Make an expected call of `backward()`; False if it is not expected."""
        states, expected = self._states(step.outputs, self._params), step.expected
        given = [token, *states]
        if expected is None or not token.requires_grad:
            return False
        if not expected.is_called(BACKWARD, given, (), step.outputs):
            return False
        self._begin(step)
        if not step.note(expected, self._repeat_backward, tuple(given), {}, given):
            return False
        made = expected.tokens(self._loop, step.outputs)
        with torch._C.DisableTorchFunction():
            for parameter, gradient, before in zip(self._params, made, states, strict=True):
                if gradient is LeftGradient.SUM:
                    parameter.grad = UnclearedSum(parameter)
                elif gradient is not before and gradient is not LeftGradient.EARLIER:
                    parameter.grad = gradient
        return True

    def update(self, step: LoopStep, optimizer: torch.optim.Optimizer, own: OwnStep) -> bool:
        """Make an expected call of an optimizer's step; False if it is not expected."""
        params, expected = params_of(optimizer), step.expected
        states = self._states(step.outputs, params)
        how = how_of(self._group.optimizers.index(optimizer), params)
        if expected is None or not expected.is_called(UPDATE, states, how, step.outputs):
            return False
        self._begin(step)
        owned = self._owned(states)
        before, options = HostState(optimizer, owned), options_of(optimizer)
        found = self._numbers(step, expected, own, owned)
        repeat = partial(self._repeat_update, optimizer, own, before, options)
        if found is None or not step.note(expected, repeat, tuple(states), {}, states):
            before.restore()
            return False
        step.given.update(found)
        return True

    def _numbers(
        self, step: LoopStep, expected: Expected, own: OwnStep, owned: set[int]
    ) -> Mapping[Ref, torch.Tensor] | None:
        """Return the numbers of an optimizer's step; None if it differs from step 1."""
        variant = step.variant
        assert variant is not None, "it has expected calls"
        assert expected.operators is not None, "of an update"
        key = variant, expected.operators.start
        if (mode := self._updates.get(key)) is None:
            mode = self._updates[key] = UpdateNumbers(variant.recording, expected.operators)
        try:
            return mode.of(own, owned)
        except OtherUpdateError:
            return None

    def _owned(self, states: Iterable[Any]) -> set[int]:
        """Return the ids of tensors that the wafer computes."""
        own = {id(x) for x in (*self._params, *self._group.buffers())}
        return own.union(map(id, states))

    def _begin(self, step: LoopStep) -> None:
        """Keep the gradients before the step's first call here."""
        if not any(made.expected.name in (BACKWARD, UPDATE) for made in step.calls):
            with torch._C.DisableTorchFunction():
                self._left = [(p, p.grad) for p in self._params]

    def _states(self, outputs: StepOutputs, params: Iterable[torch.Tensor]) -> list[Any]:
        """Return the states of parameters' gradients in a step on tokens."""

        def is_own(gradient: Any) -> bool:
            return isinstance(gradient, Token) and gradient.step is outputs

        with torch._C.DisableTorchFunction():
            return [state_of(p.grad, is_own) for p in params]

    # A step that is recorded after all.

    def _repeat_backward(self, loss: torch.Tensor, *states: Any) -> tuple[Any, ...]:
        self._set(self._params, states)
        loss.backward()
        with torch._C.DisableTorchFunction():
            return tuple(p.grad for p in self._params)

    def _repeat_update(
        self,
        optimizer: torch.optim.Optimizer,
        own: OwnStep,
        before: HostState,
        options: list[dict[str, Any]],
        *states: Any,
    ) -> tuple[Any, ...]:
        self._set(params_of(optimizer), states)
        before.restore()
        with options_as(optimizer, options):
            self._loop.update(optimizer, own, (), {})
        return ()

    def _set(self, params: Iterable[torch.Tensor], states: Iterable[Any]) -> None:
        """Give parameters the gradients that they had before a call."""
        left = {id(parameter): gradient for parameter, gradient in self._left}
        with torch._C.DisableTorchFunction():
            for parameter, state in zip(params, states, strict=True):
                is_left = isinstance(state, LeftGradient)
                parameter.grad = left[id(parameter)] if is_left else state

    def gradients(self) -> Gradients:
        """Return the gradients that the loop has now."""
        with torch._C.DisableTorchFunction():
            return [(p, p.grad) for p in self._params]

    def set_traced(self, gradients: Gradients, traced: Callable[[Any], Any]) -> None:
        """Give parameters gradients of a step that is recorded after all.

        traced: returns the traced tensor of a token.
        """
        with torch._C.DisableTorchFunction():
            for parameter, gradient in gradients:
                parameter.grad = traced(gradient) if isinstance(gradient, Token) else gradient
