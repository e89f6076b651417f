"""Tracing of a model function to CIRH."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp

from csrun.base.errors import UsageError
from csrun.base.half_formats import HalfFormat
from csrun.cirh.ops.model import StateOp, StoredOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler import CompileOptions
from csrun.data import Dataset
from csrun.estimator.config import CSEstimatorSpec
from csrun.estimator.loss_parts import loss_parts
from csrun.estimator.micro_batches import require_divides
from csrun.executable import BatchSplit, RunMode
from csrun.nn import summary
from csrun.nn.summary import SummaryKind
from csrun.nn.tensor import Tensor
from csrun.nn.tracer import Tracer
from csrun.records.update_summaries import NO_SUMMARIES, UpdateSummaries
from csrun.runtime.step.results import HostCall, Summary

ModelFunction = Callable[..., CSEstimatorSpec]
Trace = Callable[[Dataset, CompileOptions], "TracedModel"]
WHOLE = BatchSplit()


@dataclass(frozen=True)
class TracedModel:
    """CIRH of a model, and the part that runs on the host.

    losses: terms of an evaluation's loss that are means over different labels.
    first_values: initial values of weights, if a training does not use those of their initializers.
    changed_values: values that replace those of the checkpoint that a training continues.
    identity: further entries of its checkpoints' identity.
    of_updates: numbers of the updates that a training writes to its events.
    optimizer_folders: name prefixes of states that belong to an optimizer.
    update: separate program that ends each step.
    """

    module: ModuleOp
    host: HostCall | None
    summaries: tuple[Summary, ...] = ()
    losses: HostCall | None = None
    first_values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    changed_values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    of_updates: UpdateSummaries = NO_SUMMARIES
    optimizer_folders: tuple[str, ...] = ()
    update: ModuleOp | None = None

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """Placeholder array of each weight tensor by name, without memory or values."""
        kinds = {
            op.symbol.data: type_of(op.out)
            for op in self.module.walk()
            if isinstance(op, StoredOp) and not (isinstance(op, StateOp) and op.of_step)
        }
        return {
            name: np.broadcast_to(np.zeros((), dtype_of(kind)), shape_of(kind))
            for name, kind in kinds.items()
        }


def trace_model(
    model_fn: ModelFunction,
    dataset: Dataset,
    run_mode: RunMode,
    params: Any,
    precision: str,
    split: BatchSplit = WHOLE,
    storage: HalfFormat | None = None,
) -> TracedModel:
    """Call the model function on traced tensors of the shape of a minibatch.

    precision: type of arithmetic.
    storage: 16-bit format of stored numbers in mixed precision.

    Raises: UsageError if the model function does not return what the mode needs, or if the batch or
    a micro-batch cannot be split into the minibatches, or over the systems
    """
    with Tracer(precision, storage) as tracer:
        _require_arguments(dataset.nested(dataset.element_spec()), run_mode)
        tensors = _inputs(tracer, dataset, split, precision)
        features, labels = (*dataset.nested(tensors), None)[:2]
        spec = model_fn(features, labels, run_mode, params)
        _check(spec, run_mode)
        if run_mode is RunMode.PREDICT:
            outputs = list((spec.predictions or {}).items())
            return TracedModel(tracer.finish(run_mode, None, None, outputs), None)
        function, host_tensors = spec.host_call or (None, [])
        names = tuple(f"host_{index}" for index in range(len(host_tensors)))
        outputs = list(zip(names, host_tensors, strict=True))
        summaries: tuple[Summary, ...] = ()
        if run_mode is RunMode.TRAIN:
            _summarize_minimized(spec)
            summaries = _summaries(tracer)
            outputs += [(each.output, tracer.summaries[each.name][1]) for each in summaries]
        evaluated = spec.loss if run_mode is RunMode.EVAL else None
        parts = None if evaluated is None else loss_parts(evaluated)
        outputs += parts.outputs if parts else []
        module = tracer.finish(run_mode, spec.loss, spec.train_op, outputs)
    host = HostCall(function, names) if function else None
    means = parts.means if parts else None
    of_updates = spec.train_op.summaries if spec.train_op else NO_SUMMARIES
    return TracedModel(module, host, summaries, means, of_updates=of_updates)


def _inputs(tracer: Tracer, dataset: Dataset, split: BatchSplit, precision: str) -> list[Tensor]:
    """Return a traced tensor of a minibatch for each array of the data set."""
    specs = dataset.element_spec()
    return [
        tracer.input(name, _minibatch(spec.shape, split), _dtype(np.dtype(spec.dtype), precision))
        for name, spec in zip(dataset.names(len(specs)), specs, strict=True)
    ]


def _summaries(tracer: Tracer) -> tuple[Summary, ...]:
    """Return the summaries of a model, each with an output of its own."""
    return tuple(
        Summary(name, f"summary_{index}", kind is SummaryKind.HISTOGRAM)
        for index, (name, (kind, _)) in enumerate(tracer.summaries.items())
    )


def _summarize_minimized(spec: CSEstimatorSpec) -> None:
    """Keep the minimized scalar as a summary if it is not the reported loss, by a free name."""
    if spec.loss is not None and spec.train_op and spec.train_op.loss.value is not spec.loss.value:
        taken = spec.loss.tracer.summaries
        names = ("minimized_loss", *(f"minimized_loss_{n}" for n in range(1, len(taken) + 1)))
        summary.scalar(next(name for name in names if name not in taken), spec.train_op.loss)


def _require_arguments(batch: tuple[Any, ...], run_mode: RunMode) -> None:
    """Check that a batch is features and labels; prediction needs features only.

    Raises: UsageError for another number of arrays
    """
    alone = run_mode is RunMode.PREDICT or isinstance(batch[0], dict)
    if not (1 if alone else 2) <= len(batch) <= 2:
        raise UsageError(
            f"input_fn: a batch must be (features, labels) in mode {run_mode}, got {len(batch)} "
            "arrays: put several features in a tuple or dict, as ((a, b), labels)"
        )


def share_of(batch: int, systems: int) -> int:
    """Return the samples per system of a batch.

    Raises: UsageError with the nearest batch sizes that the systems divide
    """
    if batch % systems:
        below, above = batch // systems * systems, -(-batch // systems) * systems
        nearest = f"{below} or {above}" if below else str(above)
        raise UsageError(
            f"runconfig.num_csx must divide batch_size {batch}, got {systems}: "
            f"use batch_size {nearest}"
        )
    return batch // systems


def _minibatch(shape: tuple[int, ...], split: BatchSplit) -> tuple[int, ...]:
    """Shape of a minibatch of an array."""
    size = share_of(shape[0], split.systems) // split.micro_batches
    of = "batch_size" if split.micro_batches == 1 else "micro_batch_size"
    require_divides("minibatches_in_flight", split.at_once, of, size)
    return (size // split.at_once, *shape[1:])


def _dtype(dtype: "np.dtype[Any]", precision: str) -> str:
    """Dtype on the wafer: floats in the run's precision, integers signed to hold ignore_index."""
    if dtype.kind == "f":
        return precision
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return "int32"
    return "int64" if dtype.kind == "u" else dtype.name


def _check(spec: Any, run_mode: RunMode) -> None:
    if not isinstance(spec, CSEstimatorSpec):
        raise UsageError(f"model_fn must return a CSEstimatorSpec, got {type(spec).__name__}")
    if run_mode is RunMode.TRAIN and (spec.loss is None or spec.train_op is None):
        missing = "loss" if spec.loss is None else "train_op"
        raise UsageError(f"model_fn: CSEstimatorSpec needs a {missing} for training, got None")
    if run_mode is RunMode.PREDICT and not spec.predictions:
        raise UsageError("model_fn: CSEstimatorSpec needs predictions to predict, got none")
    if run_mode is RunMode.EVAL and spec.loss is None:
        raise UsageError("model_fn: CSEstimatorSpec needs a loss for evaluation, got None")
