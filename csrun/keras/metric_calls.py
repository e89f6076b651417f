"""Metrics that the code of a Keras model updates in its step, as in call or compute_loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.traced import TracedTensor


@dataclass(frozen=True)
class MetricCall:
    """Call of a metric's update_state in a recorded step, which the chief repeats after each step.

    leaves, spec: its arguments. masks: of them, as of `masks_of`.
    """

    metric: Any
    leaves: Sequence[Any]
    spec: TreeSpec
    masks: Mapping[int, Any]

    @classmethod
    def of(cls, metric: Any, *given: Any, **options: Any) -> "MetricCall":
        """Return the call with these arguments."""
        leaves, spec = tree_flatten((given, options))
        return cls(metric, [*map(_as_output, leaves)], spec, masks_of(leaves))

    @property
    def outputs(self) -> tuple[dict[int, Any], Mapping[int, Any]]:
        """Arguments that the step computes, by their number, and masks."""
        numbered = enumerate(self.leaves)
        return {n: each for n, each in numbered if isinstance(each, TracedTensor)}, self.masks

    def repeat(self, values: Mapping[int, Any], masks: Mapping[int, Any]) -> None:
        """Update the metric by the values of a step's `outputs`."""
        leaves = [values.get(number, leaf) for number, leaf in enumerate(self.leaves)]
        for number, mask in masks.items():
            set_keras_mask(leaves[number], mask > 0)
        given, options = tree_unflatten(leaves, self.spec)
        self.metric.update_state(*given, **options)


def _as_output(leaf: Any) -> Any:
    """Return an argument as it is now, with numbers in the place of booleans.

    It is a copy, since the step may change the tensor in place, as losses multiply masks into
    weights of samples.
    """
    if isinstance(leaf, keras.Variable):
        leaf = leaf.value
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.float() if leaf.dtype == torch.bool else leaf.detach().clone()


def masks_of(outputs: Any) -> dict[int, Any]:
    """Return the masks that layers have set on outputs, by the output's number, as float32.

    Source: keras.layers.Masking, Embedding(mask_zero=True): losses and metrics leave out samples
    and time steps whose mask is False.

    Shapes: output [B, T, ...] -> mask [B, T]
    """
    masks = map(get_keras_mask, tree_leaves(outputs))
    return {
        number: keras.ops.cast(mask, "float32")
        for number, mask in enumerate(masks)
        if mask is not None
    }


@contextmanager
def recorded_metrics(model: Any, are_all: bool = False) -> Iterator[list[MetricCall]]:
    """Context manager that yields the calls of metrics within it, which do not update them.

    are_all: also of the metrics of `compile()`.
    """
    calls: list[MetricCall] = []

    def record(metric: Any, *given: Any, **options: Any) -> None:
        calls.append(MetricCall.of(metric, *given, **options))

    def result(metric: Any, compute: Callable[[], Any]) -> Any:
        found = MetricResult(metric, sum(call.metric is metric for call in calls))
        if not are_all:
            return found
        values = compute()  # for their names
        if not isinstance(values, dict):
            return found
        return {name: replace(found, key=name) for name in values}

    with ExitStack() as stack:
        for metric in model.metrics if are_all else _of_script(model):
            functions = {
                "update_state": partial(record, metric),
                "reset_state": partial(_refuse_reset, metric),
                "result": partial(result, metric, metric.result),
            }
            for name, function in functions.items():
                stack.enter_context(patch.object(metric, name, function))
        yield calls


def _refuse_reset(metric: Any) -> None:
    raise UsageError(
        f"{user_line()}: the step resets metric {metric.name}, which csrun resets at the beginning "
        "of an epoch: return the value of a step as a tensor"
    )


def _of_script(model: Any) -> list[Any]:
    """Metrics of a model that its own code updates: all but those of `compile()`."""
    losses = () if model._compile_loss is None else model._compile_loss.metrics
    compiled = {id(each) for each in (model._loss_tracker, model._compile_metrics, *losses)}
    return [metric for metric in model.metrics if id(metric) not in compiled]


def _refuse_value(*_: Any, **__: Any) -> Any:
    raise UsageError(
        f"{user_line()}: the step computes with the result of a metric, which csrun updates after "
        "the step: compute with the tensors that the metric gets"
    )


@dataclass(frozen=True, eq=False)
class MetricResult:
    """Result of a metric in a recorded step, which has no value there.

    updates: of the metric in the step before it. key: of the value, if the metric has several.
    """

    metric: Any
    updates: int = 0
    key: str | None = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        _refuse_value()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        _refuse_value()

    @property
    def value(self) -> Any:
        """The value after the step's updates."""
        found = self.metric.result()
        return found if self.key is None else found[self.key]


for _name in (
    *("array", "float", "int", "bool", "len", "iter", "getitem"),
    *("neg", "pos", "abs", "round", "eq", "ne", "lt", "le", "gt", "ge"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
    *("floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "matmul", "rmatmul"),
):
    setattr(MetricResult, f"__{_name}__", _refuse_value)
