"""A model function to CIRH."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from csrun.data import Dataset
from csrun.errors import UsageError
from csrun.executable import RunMode
from csrun.frontend.estimator.config import CSEstimatorSpec
from csrun.frontend.nn import Tracer
from csrun.runtime.host import HostCall

ModelFunction = Callable[..., CSEstimatorSpec]


@dataclass(frozen=True)
class TracedModel:
    """The CIRH of a model and the host's part of it."""

    module: ModuleOp
    host: HostCall | None


def trace_model(
    model_fn: ModelFunction,
    dataset: Dataset,
    run_mode: RunMode,
    params: Any,
    precision: str,
    minibatches: int,
) -> TracedModel:
    """Call the model function on traced tensors shaped like a minibatch of the first batch.

    Raises: UsageError when the model function does not return what the mode needs, or the batch
    does not split into so many minibatches.
    """
    with Tracer(precision=precision) as tracer:
        tensors = [
            tracer.input(
                name, _minibatch(spec.shape, minibatches), _dtype(np.dtype(spec.dtype), precision)
            )
            for name, spec in zip(("features", "labels"), dataset.element_spec(), strict=True)
        ]
        spec = model_fn(*tensors, run_mode, params)
        _check(spec, run_mode)
        function, host_tensors = spec.host_call or (None, [])
        names = tuple(f"host_{index}" for index in range(len(host_tensors)))
        module = tracer.finish(
            run_mode, spec.loss, spec.train_op, list(zip(names, host_tensors, strict=True))
        )
    return TracedModel(module, HostCall(function, names) if function else None)


def _minibatch(shape: tuple[int, ...], minibatches: int) -> tuple[int, ...]:
    batch = shape[0]
    if batch % minibatches:
        fitting = [m for m in range(1, batch + 1) if batch % m == 0]
        below = max(m for m in fitting if m < minibatches)
        above = min((m for m in fitting if m > minibatches), default=below)
        raise UsageError(
            f"runconfig.minibatches_in_flight must divide batch_size {batch}, got {minibatches}: "
            f"the nearest that do are {below} and {above}"
        )
    return (batch // minibatches, *shape[1:])


def _dtype(dtype: "np.dtype[Any]", precision: str) -> str:
    """Floats get the run's precision; small integers int32, which holds the padding label."""
    if dtype.kind == "f":
        return precision
    return "int32" if dtype.kind in "iu" and dtype.itemsize < 4 else dtype.name


def _check(spec: Any, run_mode: RunMode) -> None:
    if not isinstance(spec, CSEstimatorSpec):
        raise UsageError(f"model_fn must return a CSEstimatorSpec, got {type(spec).__name__}")
    if run_mode is RunMode.TRAIN and (spec.loss is None or spec.train_op is None):
        missing = "loss" if spec.loss is None else "train_op"
        raise UsageError(f"model_fn: CSEstimatorSpec needs a {missing} for training, got None")
    if run_mode is RunMode.EVAL and spec.loss is None:
        raise UsageError("model_fn: CSEstimatorSpec needs a loss for evaluation, got None")
