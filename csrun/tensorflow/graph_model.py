"""Graph of a model_fn: placeholders of the batch, the call, and its import to csrun's tracer."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.half_formats import HalfFormat
from csrun.cirh import set_storage
from csrun.compiler import CompileOptions, rebatch
from csrun.data import Dataset
from csrun.estimator.config import CSEstimatorSpec as NativeSpec
from csrun.estimator.model_trace import TracedModel, trace_model
from csrun.executable import RunMode
from csrun.nn import Tensor, summary
from csrun.tensorflow.apply_nodes import GraphLearning, learning_of
from csrun.tensorflow.dense_columns import without_sparse_columns
from csrun.tensorflow.errors import GraphError, line_of, refused
from csrun.tensorflow.graph_branches import without_branches
from csrun.tensorflow.graph_functions import without_functions
from csrun.tensorflow.graph_gradients import RequestedGradients, ancestors
from csrun.tensorflow.graph_import import GraphImporter, stored_name
from csrun.tensorflow.graph_loops import without_loops
from csrun.tensorflow.graph_metrics import GraphMetrics
from csrun.tensorflow.half_floats import HALVES, without_halves
from csrun.tensorflow.moving_statistics import import_statistics
from csrun.tensorflow.rate_schedules import RateReader
from csrun.tensorflow.row_gradients import warn_of_rows
from csrun.tensorflow.script_optimizers import ScriptOptimizers
from csrun.tensorflow.script_precision import LossScales, StorageChoice, policies
from csrun.tensorflow.tf_spec import CSEstimatorSpec
from csrun.tensorflow.tf_version import seed_keras, tf

log = logging.getLogger("csrun")

MODES = {RunMode.TRAIN: "train", RunMode.EVAL: "eval", RunMode.PREDICT: "infer"}
Array = npt.NDArray[Any]


@dataclass
class GraphRequest:
    """Request of a trace. call: the user's model_fn. precision: type of arithmetic.

    last: last step of a training, if known.
    storage: choice of the 16-bit format.
    has_joined: a training's batches are each several of the input_fn.
    """

    call: Callable[..., Any]
    params: Any
    config: Any
    seed: int
    precision: str
    last: int | None = None
    storage: StorageChoice = field(default_factory=StorageChoice)
    has_joined: bool = False


def trace_graph(request: GraphRequest, dataset: Dataset, options: CompileOptions) -> TracedModel:
    """Return the program of a mode before the passes, its metrics, and initial values of its
    weights.

    Raises: UsageError, GraphError for a model_fn that csrun cannot compile
    """
    model = _GraphModel(request, options.run_mode)
    specs = dataset.element_spec()
    model.kinds = dataset.nested(specs)
    traced = trace_model(model.build, dataset, options.run_mode, request.params, request.precision)
    host = None
    if model.metrics is not None and traced.host is not None:
        host = replace(model.metrics, outputs=traced.host.outputs)
    rebatch(traced.module, options, specs[0].shape[0])
    return replace(traced, host=host, first_values=model.first_values())


@dataclass
class _GraphModel:
    """One call of a model_fn in a separate graph."""

    request: GraphRequest
    mode: RunMode
    graph: Any = field(default_factory=lambda: tf.Graph())
    kinds: tuple[Any, ...] = ()
    metrics: GraphMetrics | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def build(self, features: Any, labels: Any, mode: RunMode, params: Any) -> NativeSpec:
        """Model function for csrun's tracer."""
        gradients, rates = RequestedGradients(), RateReader(self.request.last)
        own, scales = ScriptOptimizers(), LossScales()
        records = (each.recorded() for each in (gradients, rates, own, scales, policies))
        with self.graph.as_default(), ExitStack() as stack:
            for record in records:
                stack.enter_context(record)
            tf.compat.v1.set_random_seed(self.request.seed)
            seed_keras(self.request.seed)
            tf.compat.v1.get_variable_scope().set_use_resource(True)
            tf.compat.v1.train.get_or_create_global_step()
            batch = [
                _mapped(self._placeholder, kind, value)
                for kind, value in zip(self.kinds, (features, labels), strict=False)
            ]
            with (
                without_halves(tf),
                without_functions(),
                without_branches(),
                without_loops(),
                without_sparse_columns(),
            ):
                spec = self._called(*batch[:2])
            storage = self._set_storage()
            learning = None
            if mode is RunMode.TRAIN and spec.train_op is not None:
                learning = learning_of(spec.train_op, gradients, rates, own)
                if spec.loss is not None:
                    warn_of_rows(learning, _minimized(spec.loss, gradients))
                if storage is not None:
                    learning = replace(learning, optimizer=scales.applied(learning.optimizer))
            return self._imported(spec, learning, gradients)

    def _set_storage(self) -> HalfFormat | None:
        """Set the storage format of the traced module."""
        storage = self.request.storage.of(policies.name)
        if storage is not None:
            set_storage(next(iter(self.inputs.values())).tracer.module, storage)
        return storage

    def _placeholder(self, kind: Any, value: Tensor) -> Any:
        dtype = "float32" if np.dtype(kind.dtype).name in HALVES else kind.dtype
        made = tf.compat.v1.placeholder(dtype, value.shape, name=f"input/{value.name}")
        self.inputs[made.op.name] = value
        return made

    def _called(self, features: Any, labels: Any = None) -> CSEstimatorSpec:
        """Call the model_fn with the arguments that it accepts.

        Raises: GraphError for a result that is not a specification
        """
        given = {
            "labels": labels,
            "mode": MODES[self.mode],
            "params": self.request.params,
            "config": self.request.config,
        }
        takes = inspect.signature(self.request.call).parameters
        found = self.request.call(
            features, **{name: value for name, value in given.items() if name in takes}
        )
        if not hasattr(found, "loss") or not hasattr(found, "train_op"):
            raise GraphError(f"model_fn must return a CSEstimatorSpec, got {type(found).__name__}")
        spec: CSEstimatorSpec = found
        return spec

    def _imported(
        self, spec: CSEstimatorSpec, learning: GraphLearning | None, gradients: RequestedGradients
    ) -> NativeSpec:
        tracer = next(iter(self.inputs.values())).tracer
        trained = set(learning.trained) if learning else None
        minimized = _minimized(spec.loss, gradients) if learning and spec.loss is not None else None
        is_padded = _has_padded_labels(self.request.params)
        self.importer = importer = GraphImporter(tracer, self.inputs, trained, minimized, is_padded)
        if self.mode is RunMode.PREDICT:
            return self._predicted(spec)
        if spec.loss is None:
            raise GraphError(f"model_fn: CSEstimatorSpec needs a loss in mode {self.mode}")
        metrics = None
        if self.mode is RunMode.EVAL:
            with without_halves(tf):  # host_call is called now
                metrics = self.metrics = GraphMetrics.of(spec, self.graph)
        if learning is None:
            loss, *others = importer.tensors([spec.loss, *(metrics.tensors if metrics else ())])
            call = (dict, others) if metrics else None
            return NativeSpec(mode=self.mode, loss=loss, host_call=call)
        loss, trained_by = importer.tensors([spec.loss, minimized])
        ends, batch = (spec.train_op, spec.loss, minimized), self.inputs.keys()
        import_statistics(importer, self.graph, ends, batch, gradients.variables)
        if importer.assigned and self.request.has_joined:
            name, op = next(iter(importer.assigned.items()))
            raise refused(
                op,
                f"{name} is a statistic of each batch, and with grad_accum_steps csrun joins "
                "several: set optimizer.grad_accum_steps to 1, or use layer normalization",
            )
        self._summarize([spec.loss, minimized])
        return NativeSpec(mode=self.mode, loss=loss, train_op=learning.minimize(trained_by))

    def _predicted(self, spec: CSEstimatorSpec) -> NativeSpec:
        found = spec.predictions
        named = dict(found) if isinstance(found, Mapping) else {"output": found}
        if found is None:
            raise GraphError("model_fn: CSEstimatorSpec needs predictions in mode infer")
        values = self.importer.tensors(list(named.values()))
        return NativeSpec(mode=self.mode, predictions=dict(zip(named, values, strict=True)))

    def _summarize(self, losses: Sequence[Any]) -> None:
        """Keep the scalar summaries of the losses, and of values that they are computed from."""
        known = {op.name for op in ancestors([loss.op for loss in losses])}
        for entry in self.graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
            op = getattr(entry, "op", None)
            if op is None or op.type != "ScalarSummary" or op.inputs[1].op.name not in known:
                continue
            (value,) = self.importer.tensors([op.inputs[1]])
            if not value.shape and value.dtype == self.request.precision:
                summary.scalar(op.name, value)

    def first_values(self) -> dict[str, Array]:
        """Return initial values of the variables, computed by TensorFlow; empty outside of a
        training.
        """
        if self.mode is not RunMode.TRAIN:
            return {}
        variables = self.importer.variables
        with tf.compat.v1.Session(graph=self.graph) as session:
            session.run([variable.initializer for variable in variables.values()])
            values = session.run({name: v.value() for name, v in variables.items()})
        kind = np.dtype(self.request.precision)
        return {stored_name(name): np.asarray(value, kind) for name, value in values.items()}


def _has_padded_labels(params: Any) -> bool:
    """True for params of the Model Zoo whose sequences have variable lengths.

    Their input function gives padding the label -1 and the weight 0.
    """
    model = params.get("model") if isinstance(params, Mapping) else None
    return isinstance(model, Mapping) and bool(model.get("use_vsl"))


def _mapped(function: Callable[[Any, Tensor], Any], kinds: Any, values: Any) -> Any:
    """Apply a function to each array of a structure of tuples and dicts."""
    if isinstance(values, Mapping):
        return {name: _mapped(function, kinds[name], value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return tuple(_mapped(function, *pair) for pair in zip(kinds, values, strict=True))
    return function(kinds, values)


def _minimized(loss: Any, gradients: RequestedGradients) -> Any:
    """Return the tensor that gradients are of; the specification's loss if it is the same.

    Raises: GraphError for gradients of several tensors
    """
    losses = {_plain(each).name: each for each in gradients.losses}
    if len(losses) > 1:
        lines = " and ".join(f"{each.name} ({line_of(each.op)})" for each in losses.values())
        raise GraphError(
            f"model_fn: gradients of {len(losses)} losses are requested, {lines}: minimize the sum"
        )
    return loss if not losses or _plain(loss).name in losses else next(iter(losses.values()))


def _plain(tensor: Any) -> Any:
    while tensor.op.type in ("Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return tensor
