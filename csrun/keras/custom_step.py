"""The train_step or test_step of a model's class, run once on traced tensors."""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import CodeType
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_unflatten

from csrun.base.errors import UsageError
from csrun.keras.host_metrics import FitMetrics, logged
from csrun.keras.metric_calls import MetricCall, MetricResult
from csrun.keras.torch_backend import keras
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.traced import TracedTensor

log = logging.getLogger("csrun")
_WHERE = "in micro-batches, on several systems and in mixed precision"
_ONE_UPDATE = (
    f"{_WHERE} csrun supports one loss.backward() and one self.optimizer.apply of the gradients of "
    "all trainable weights"
)


def has_custom_step(model: Any, name: str = "train_step") -> bool:
    """Return whether the class of a model, or the model itself, overrides a step."""
    module: str = getattr(model, name).__module__
    return module.split(".")[0] != "keras"


def code_of(step: Any) -> CodeType:
    """Return the code of a model's step: a method, or a function that the script has set."""
    while isinstance(step, partial):
        step = step.func
    found: CodeType = inspect.unwrap(step).__code__
    return found


def _numbers_of(model: Any) -> dict[str, Any]:
    """Return the plain values among a model's own attributes, by name."""
    kinds, own = (bool, int, float, str), vars(model).items()
    return {n: x for n, x in own if type(x) in kinds and not n.startswith("_") and n != "built"}


@cache  # once per line and attribute
def _warn_of_number(line: str, step: str, name: str) -> None:
    log.warning(
        "%s: %s sets self.%s, but its Python code runs once, when the step is recorded: all steps "
        "take the value of that call: use a keras.Variable for a number that steps compute with",
        line,
        step,
        name,
    )


class OtherStepError(UsageError):
    """A train_step that is not one loss and one update."""


class ReturnedValues(ABC):
    """Values that a model's step returns.

    values, metrics: tensors and results of metrics, by name; none if it `returns_metrics`, which
        are those that the model has.
    outer: names of the dicts that values of nested dicts are in, by the names of these values.
    """

    STEP: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self._model = model
        self.values: dict[str, Any] = {}
        self.metrics: dict[str, MetricResult] = {}
        self.returns_metrics = False
        self.outer: dict[str, str] = {}
        self._names: set[str] = set()  # of results of the model's metrics

    def build(self, data: Any) -> None:
        """Build what depends on the data, such as the metrics of several losses, as Keras's fit."""
        self._model._symbolic_build(data_batch=data)
        self._names = {*self._model.get_metrics_result()}

    @abstractmethod
    def call(self, data: Any, calls: Sequence[MetricCall]) -> Any:
        """Call the step, and return its loss. calls: of metrics, as of `recorded_metrics`."""

    def require_readable(self, variable: Any) -> None:  # noqa: B027  others may read all
        """Raises: UsageError for a variable that the step must not read now"""

    def _returned(self, data: Any) -> Any:
        """Call the model's step; warn of its attributes that Python code sets in this call only."""
        before = _numbers_of(self._model)
        returned = getattr(self._model, self.STEP)(data)
        for name, value in _numbers_of(self._model).items():
            if before.get(name) != value:
                code = code_of(getattr(self._model, self.STEP))
                _warn_of_number(f"{code.co_filename}:{code.co_firstlineno}", self.STEP, name)
        return returned

    def _take(self, returned: Any, calls: Sequence[MetricCall]) -> None:
        """Sort what the step returns.

        Source: keras.Model: the metrics' results count if they have the same names

        Raises: UsageError for a value that is not a number of this step
        """
        if not isinstance(returned, Mapping):
            raise self._refusal(f"returns a {type(returned).__name__}", "return a dict")
        self.outer = {
            inner: name
            for name, value in returned.items()
            if isinstance(value, Mapping)
            for inner in _flat(value)
        }
        returned = _flat(returned)
        self.returns_metrics = returned.keys() == self._names
        for name, value in {} if self.returns_metrics else returned.items():
            if isinstance(value, TracedTensor):
                self.values[name] = value.detach()
            elif not isinstance(value, MetricResult):
                raise self._refusal(
                    f"returns {name}, a {type(value).__name__} that is constant in csrun",
                    "return tensors of the step, and results of metrics in the model's `metrics`",
                )
            elif value.updates < sum(call.metric is value.metric for call in calls):
                raise self._refusal(
                    f"returns {name}, a result before the metric's last update",
                    "call result() after update_state()",
                )
            else:
                self.metrics[name] = value

    def _refusal(self, what: str, remedy: str) -> UsageError:
        code = code_of(getattr(self._model, self.STEP))
        return UsageError(
            f"{code.co_filename}:{code.co_firstlineno}: {type(self._model).__name__}.{self.STEP} "
            f"{what}: {remedy}"
        )


class CustomTestStep(ReturnedValues):
    """Call of a model's test_step; the evaluation has what it returns, and no loss of its own."""

    STEP = "test_step"

    def call(self, data: Any, calls: Sequence[MetricCall]) -> None:
        """Call test_step."""
        self._take(self._returned(data), calls)


class CustomStep(ReturnedValues):
    """Call of a model's train_step whose loss, gradients and update are those of a built-in step.

    It clears the gradients, computes any loss, calls backward() on it, and applies the gradients of
    all trained variables once. csrun computes the backward pass and the update.

    trained: variables and their traced tensors.
    loss: on which backward() was called; None before it.

    Raises: UsageError for any other step
    """

    STEP = "train_step"

    def __init__(self, model: Any, trained: Sequence[tuple[Any, torch.Tensor]]) -> None:
        super().__init__(model)
        self._trained = trained
        self._gradients: dict[int, torch.Tensor] = {}  # by variable
        self._is_applied = self._was_cleared = False
        self.loss: Any = None

    def call(self, data: Any, calls: Sequence[MetricCall]) -> Any:
        """Call train_step, and return its loss."""
        self._set_gradients()  # left by the previous step
        try:
            with self._watched():
                returned = self._returned(data)
            was_cleared = self._was_cleared or self._has_cleared
        finally:
            for variable, tensor in self._trained:
                tensor.grad = variable._value.grad = None
        if self.loss is None:
            raise self._other("does not call backward() on a loss")
        if not self._is_applied:
            raise self._other("does not call self.optimizer.apply")
        if not was_cleared:
            raise self._other("does not call self.zero_grad(), so that gradients are added up")
        self._take(returned, calls)
        return self.loss

    def require_readable(self, variable: Any) -> None:
        """Raises: UsageError for a variable that the update has changed"""
        if self._is_applied and any(variable is each for each, _ in self._trained):
            raise self._other(f"reads the weight {variable.path} after the update")

    def _backward(self, loss: Any, *given: Any, **options: Any) -> None:
        """Keep the loss, in the place of a backward pass."""
        if self.loss is not None:
            raise self._other("calls backward() twice")
        if given or options:
            raise self._other("gives arguments to backward()")
        self.loss = loss
        self._was_cleared = self._has_cleared
        self._set_gradients()

    def _set_gradients(self) -> None:
        """Give each trained variable a gradient to recognise, here and in the model itself."""
        for variable, tensor in self._trained:
            gradient = torch.zeros(tuple(tensor.shape)).as_subclass(_StepGradient)
            self._gradients[id(variable)] = tensor.grad = variable._value.grad = gradient

    @property
    def _has_cleared(self) -> bool:
        """Return whether the gradients are cleared, for example by zero_grad()."""
        return all(v._value.grad is None or tensor.grad is None for v, tensor in self._trained)

    def _apply(self, gradients: Any, variables: Any = None) -> None:
        """Compare the gradients with those of the loss, in the place of an update."""
        given = [variable for variable, _ in self._trained] if variables is None else [*variables]
        gradients = [*gradients]
        if self._is_applied:
            raise self._other("applies gradients twice")
        if {*map(id, given)} != {id(variable) for variable, _ in self._trained}:
            raise self._other("does not apply the gradients of all trainable weights at once")
        for variable, gradient in zip(given, gradients, strict=True):
            if gradient is not self._gradients.get(id(variable)):
                raise self._other(
                    f"applies a gradient of {variable.path} that is not v.value.grad after "
                    "backward()"
                )
        self._is_applied = True

    def _refuse_other(self, *_: Any, **__: Any) -> None:
        raise self._other("uses an optimizer other than that of compile()")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        optimizer: Any = self._model.optimizer
        kind: Any = keras.optimizers.Optimizer
        with ExitStack() as stack:
            stack.enter_context(patch.object(TracedTensor, "backward", _method(self._backward)))
            stack.enter_context(patch.object(kind, "apply", self._refuse_other))
            stack.enter_context(patch.object(optimizer, "apply", self._apply))
            stack.enter_context(patch.object(optimizer, "scale_loss", _unchanged))
            yield

    def _other(self, what: str) -> "OtherStepError":
        return OtherStepError(str(self._refusal(what, _ONE_UPDATE)))


class _StepGradient(torch.Tensor):
    """Gradient of a trained variable, with which the step must not compute."""

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        raise OtherStepError(
            f"{user_line()}: train_step computes with a gradient, and csrun applies gradients "
            f"unchanged {_WHERE}: use clipnorm, global_clipnorm or clipvalue of the optimizer"
        )


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a class binds."""
    return lambda *given, **options: function(*given, **options)


def _unchanged(loss: Any) -> Any:
    """Return the loss, which csrun scales itself."""
    return loss


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by name, with those of nested dicts in their place, as Keras logs them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found


@dataclass
class CustomStepMetrics(FitMetrics):
    """Values that a train_step returns: results of metrics, and numbers of the last step.

    returned: results by name; None for those of all metrics of the model.
    """

    returned: Mapping[str, MetricResult] | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    def _update(self, arrays: list[Any]) -> None:
        assert self.spec is not None, "given with the model"
        given, self.numbers = tree_unflatten(arrays, self.spec)
        for call, (values, masks) in zip(self.calls, given, strict=True):
            call.repeat(values, masks)

    def logs(self) -> dict[str, Any]:
        """Return the values by name, as Keras logs them."""
        if not self.taken:
            return {}
        if self.returned is None:
            with self.own.watched():
                found = self.model.get_metrics_result()
        else:
            found = self.numbers | {name: each.value for name, each in self.returned.items()}
        return {name: logged(value) for name, value in found.items()}

    def _reset_metrics(self) -> None:
        self.model.reset_metrics()

    @property
    def _of_last_step(self) -> Any:
        return self.numbers

    @_of_last_step.setter
    def _of_last_step(self, values: Any) -> None:
        self.numbers = values

    @property
    def _metrics(self) -> list[Any]:
        return list({id(call.metric): call.metric for call in self.calls}.values())
