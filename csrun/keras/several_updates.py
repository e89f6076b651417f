"""A train_step of several losses or updates, recorded whole, with the updates of its optimizers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves

from csrun.base.errors import UsageError
from csrun.keras.custom_step import ReturnedValues
from csrun.keras.metric_calls import MetricCall
from csrun.keras.optimizer_step import (
    MOST_STEPS,
    OPTIMIZER_FOLDER,
    Branches,
    WrittenScope,
    named_variables,
    recorded_as_operators,
    refusal_of_write,
    require_free_folder,
)
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel, hold_tensor, stored_name, tensor_at
from csrun.pytorch.errors import CaptureError
from csrun.pytorch.record.model_group import ModelGroup


class UnknownOptimizerError(UsageError):
    """An optimizer that the recording does not have yet. variables: those that it updates."""

    def __init__(self, optimizer: Any, variables: Any) -> None:
        super().__init__(f"optimizer {type(optimizer).__name__} is not among those of the model")
        self.optimizer, self.variables = optimizer, variables


class SeveralUpdates(ReturnedValues):
    """Call of a model's train_step whose backward passes and updates are recorded as they are.

    It may call backward() several times, change gradients, and apply them by any optimizers to any
    trained variables. All variables are states of the program.

    optimizers: by name in a checkpoint.
    module: the model's variables and those of the optimizers.
    """

    STEP = "train_step"

    def __init__(self, model: KerasModel, optimizers: Mapping[str, Any]) -> None:
        super().__init__(model.keras)
        self._weights, self._optimizers = model, optimizers
        require_free_folder(model)
        model.state = {}
        for name, optimizer in optimizers.items():
            model.state |= named_variables(optimizer.variables, f"{OPTIMIZER_FOLDER}{name}/")
        self.module = ModelGroup((), ())
        model.hold_variables(self.module)
        for variable in model.trained:  # its own tensor, whose gradient the step reads and clears
            hold_tensor(self.module, stored_name(variable), variable._value)
        for name, variable in model.state.items():
            value = variable.value.detach().cpu().to(torch.float32, copy=True)
            hold_tensor(self.module, name, value)

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates that are variables, by the variables' names in a checkpoint."""
        state = self._weights.state.items()
        rates = [optimizer._learning_rate for optimizer in self._optimizers.values()]
        return {name: float(v) for name, v in state if any(v is rate for rate in rates)}

    @property
    def tensors(self) -> list[tuple[Any, torch.Tensor]]:
        """Variables with their tensors in the module."""
        named = self._weights.named.items()
        return [(variable, tensor_at(self.module, name)) for name, variable in named]

    def require_countable(self, last: int | None) -> None:
        """Raises: UsageError for a last step that cannot be counted"""
        if last is not None and last > MOST_STEPS:
            raise self._refusal(
                f"has several updates, whose steps are counted in float32 up to {MOST_STEPS}, got "
                f"max_steps={last}",
                "lower max_steps",
            )

    def call(self, data: Any, calls: Sequence[MetricCall]) -> None:
        """Call train_step.

        Raises: UnknownOptimizerError; UsageError for a step without an update
        """
        self._applied, self._left = False, {}
        self._recorder = tree_leaves(data)[0].recorder
        self._recorder.backward.require_cleared = self._note_cleared
        for variable in self._weights.trained:  # left by the previous step
            left = torch.zeros(tuple(variable.shape))
            self._left[id(variable)] = variable._value.grad = left
        kind: Any = keras.optimizers.Optimizer
        own = kind.apply

        def apply(*given: Any, **options: Any) -> None:
            self._apply(own, *given, **options)

        with (
            patch.object(kind, "apply", apply),
            patch.object(kind, "scale_loss", lambda optimizer, loss: loss),
        ):
            returned = self._returned(data)
        if not self._applied:
            raise self._refusal("does not apply gradients", "call optimizer.apply in it")
        self._take(returned, calls)

    def clear(self) -> None:
        """Remove gradients of the recording."""
        for variable in self._weights.trained:
            variable._value.grad = None

    def _note_cleared(self) -> Collection[str]:
        """Note at a backward() which gradients of the previous step it is added to."""
        for variable in self._weights.trained:
            gradient = variable._value.grad
            if gradient is None:
                self._left.pop(id(variable), None)
            elif gradient is self._left.get(id(variable)):
                variable._value.grad = None
        return ()

    def _apply(
        self, own: Callable[..., Any], optimizer: Any, gradients: Any, variables: Any = None
    ) -> None:
        """Record an update."""
        gradients = [*gradients]
        if not any(optimizer is each for each in self._optimizers.values()):
            raise UnknownOptimizerError(optimizer, variables or self._weights.trained)
        given = [*(self._weights.trained if variables is None else variables)]
        for variable, gradient in zip(given, gradients, strict=True):
            if gradient is not None and id(variable) in self._left:
                raise self._refusal(
                    f"applies a gradient of {variable.path} to which those of earlier steps are "
                    "added",
                    "call self.zero_grad() before backward()",
                )
        self._applied = True
        tensors = self.tensors
        branches = Branches(self._recorder, [tensor for _, tensor in tensors])
        with (
            torch.no_grad(),
            self._recorder.scopes.within(None),
            WrittenScope(tensors, partial(refusal_of_write, optimizer)),
            recorded_as_operators(optimizer, branches),
        ):
            try:
                own(optimizer, gradients, given)
            except CaptureError as error:
                raise UsageError(
                    f"optimizer {type(optimizer).__name__}: csrun cannot record its update: {error}"
                ) from error


def add_optimizer(optimizers: dict[str, Any], model: Any, error: UnknownOptimizerError) -> None:
    """Add an optimizer, built for its variables, by the name of the model's attribute, or by its
    class.
    """
    added = error.optimizer
    if not added.built:
        added.build([*error.variables])
    kind = type(added).__name__.lower()
    own = (name for name, value in vars(model).items() if value is added)
    first = next(own, "main" if added is model.optimizer else kind).lstrip("_")
    names = chain([first], (f"{first}_{number}" for number in count(2)))
    optimizers[next(name for name in names if name not in optimizers)] = added
