"""Metrics of an evaluation: TensorFlow's streaming metrics, updated by the program's outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from csrun.base.errors import UsageError
from csrun.runtime.step.results import HostCall, StepResult
from csrun.runtime.wire.messages import Results
from csrun.tensorflow.graph_gradients import ancestors, variables_by_operator
from csrun.tensorflow.tf_spec import CSEstimatorSpec, host_call_to_eval_metric_ops
from csrun.tensorflow.tf_version import tf


@dataclass
class GraphMetrics(HostCall):
    """Metric operators in a separate graph, whose placeholders have any number of samples.

    tensors: of the model's graph, from which the metrics are computed.
    takes_parts: whether the metrics accept any number of samples.
    """

    tensors: tuple[Any, ...] = ()
    session: Any = field(default=None, repr=False)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_new: bool = True
    takes_parts: bool = True

    @classmethod
    def of(cls, spec: CSEstimatorSpec, graph: Any) -> Self | None:
        """The metrics of a specification; None without metrics."""
        pairs = dict(getattr(spec, "eval_metric_ops", None) or {})
        takes_parts = False
        if call := getattr(spec, "host_call", None):
            pairs, takes_parts = _pairs_of(call)
        if not pairs:
            return None
        names = {name: (value.name, update.name) for name, (value, update) in pairs.items()}
        elements = [graph.as_graph_element(name) for both in names.values() for name in both]
        ends = [getattr(each, "op", each) for each in elements]  # an update may be an operator
        tensors = _frontier(ends, spec.loss)
        session = _session_of(graph, ends, tensors)
        return cls(dict, (), tensors=tensors, session=session, names=names, takes_parts=takes_parts)

    def take(self, result: StepResult) -> None:
        """Update the metrics by one step's outputs."""
        if self.is_new:
            self.session.run("reset_metrics")
            self.is_new = False
        feeds = {f"fed_{n}:0": result.outputs[name] for n, name in enumerate(self.outputs)}
        whole = [tuple(t.shape.as_list()) for t in self.tensors]
        if not self.takes_parts and [v.shape for v in feeds.values()] != whole:
            raise UsageError(
                "metrics: the last batch has fewer samples, and the graph's metrics need a full "
                "batch: drop the incomplete batch (drop_remainder=True), or use a host_call "
                "without static shapes"
            )
        self.session.run([update for _, update in self.names.values()], feeds)

    def values(self) -> Results:
        """Return the metrics by name, and reset."""
        if self.is_new:
            return {}
        found = self.session.run({name: value for name, (value, _) in self.names.items()})
        self.is_new = True
        return {name: float(value) for name, value in found.items()}


def _pairs_of(call: Any) -> tuple[dict[str, Any], bool]:
    """Return the metrics of a host_call, and whether they accept any number of samples.

    Metrics that use the static number of samples, such as a reshape to `labels.shape`, need full
    batches.
    """
    given = tf.nest.map_structure(_of_any_batch, list(call[1]))
    try:
        return host_call_to_eval_metric_ops((call[0], given)), True
    except (TypeError, ValueError):
        return host_call_to_eval_metric_ops((call[0], list(call[1]))), False


def _of_any_batch(tensor: Any) -> Any:
    """Return a tensor whose first axis has no static size, since a last batch may have fewer
    samples.
    """
    if not hasattr(tensor, "op") or not tensor.shape.rank:
        return tensor
    return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


def _frontier(ends: list[Any], loss: Any) -> tuple[Any, ...]:
    """Return tensors of the model that the metrics read: those of the loss, and the batch."""
    of_loss = {op.name for op in ancestors([loss.op])} if loss is not None else set()
    weights = {name for name, v in variables_by_operator(ends[0].graph).items() if v.trainable}
    pending, seen, found = list(ends), set[str](), dict[str, Any]()
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        for tensor in op.inputs:
            source = tensor.op
            if _is_constant(source):
                continue
            reads = {t.op.inputs[0].op.name if t.op.inputs else t.op.name for t in source.inputs}
            if source.type == "Placeholder" or source.name in of_loss or reads & weights:
                found[tensor.name] = tensor
            else:
                pending.append(source)
        pending += op.control_inputs
    return tuple(found.values())


def _is_constant(op: Any) -> bool:
    return all(each.type not in ("Placeholder", "VarHandleOp") for each in ancestors([op]))


def _session_of(graph: Any, ends: list[Any], tensors: tuple[Any, ...]) -> Any:
    """Return a session of a copy of the metrics' part of a graph, over placeholders."""
    local = graph.get_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES)
    metric = graph.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
    variables = {v.name: v for v in (*local, *metric)}.values()
    starts = [v.initializer.name for v in variables]
    needed = ancestors([*ends, *map(graph.get_operation_by_name, starts)], by_control=True)
    names = {op.name for op in needed}
    definition = graph.as_graph_def()
    nodes = [node for node in definition.node if node.name in names]
    del definition.node[:]
    definition.node.extend(nodes)
    copy = tf.Graph()
    with copy.as_default():
        fed = {
            tensor.name: tf.compat.v1.placeholder(
                tensor.dtype, [None, *tensor.shape[1:]] if tensor.shape.rank else [], f"fed_{n}"
            )
            for n, tensor in enumerate(tensors)
        }
        tf.import_graph_def(definition, input_map=fed, name="")
        tf.group(*(copy.get_operation_by_name(name) for name in starts), name="reset_metrics")
    return tf.compat.v1.Session(graph=copy)
