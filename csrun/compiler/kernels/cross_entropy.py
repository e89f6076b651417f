"""Which kernels a cross entropy gets: one pass over all for few classes, row by row for many."""

from xdsl.ir import Operation

from csrun.cirh.batch_axes import source_of_labels
from csrun.cirh.ops.arithmetic import DivOp
from csrun.cirh.ops.batch import LabelCountOp
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
)
from csrun.cirh.ops.model import LossOp
from csrun.compiler.array import Array
from csrun.compiler.graph import LOSS, Graph
from csrun.compiler.kernels.base import Kernel, Matcher
from csrun.compiler.kernels.batch import labels_of
from csrun.compiler.kernels.softmax_cross_entropy import (
    CrossEntropyBackward,
    CrossEntropyForward,
    Parts,
)
from csrun.compiler.kernels.wide_cross_entropy import WideBackward, WideForward

WIDE = 128  # classes from which reductions along a row cost less than a transpose


def match_forward(operation: Operation, graph: Graph) -> Kernel | None:
    """log_softmax, nll_loss_forward, the division by the count, the mark that it is the loss."""
    assert isinstance(operation, NllLossForwardOp)
    softmax = operation.x.owner
    if not isinstance(softmax, LogSoftmaxOp) or softmax.dim.value.data != 1:
        return None
    losses = [op for op in graph.users(softmax.out) if isinstance(op, NllLossForwardOp)]
    others = [op for op in graph.users(softmax.out) if not isinstance(op, _USES)]
    mean = graph.only_user(operation.out)
    if len(losses) != 1 or others:
        return None
    if not (isinstance(mean, DivOp) and isinstance(mean.rhs.owner, LabelCountOp)):
        return None
    count = graph.number(mean.rhs)
    readers = graph.users(mean.out)
    is_the_mean = count == f"step.counts[{graph.loss_count()}]"
    marks = [op for op in readers if isinstance(op, LossOp) and is_the_mean]
    graph.take(softmax, operation, mean, *marks)
    parts = _parts(softmax, operation, graph)
    kind = WideForward if parts.logits.shape[1] >= WIDE else CrossEntropyForward
    return kind(
        graph.layer_of(softmax),
        parts,
        LOSS if marks else Array(f"{parts.stem}/sum", LOSS.shape, LOSS.dtype),
        graph.array(mean.out) if len(readers) > len(marks) else None,
        graph.array(mean.rhs) if count is None else count,
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """A sum's gradient, through nll_loss_backward and log_softmax's backward."""
    assert isinstance(operation, NllLossBackwardOp)
    through = graph.only_user(operation.out)
    forward = operation.x.owner
    if not (isinstance(through, LogSoftmaxBackwardOp) and isinstance(forward, LogSoftmaxOp)):
        return None
    graph.take(operation, through)
    parts = _parts(forward, operation, graph)
    scale = graph.number(operation.grad)
    kind = WideBackward if parts.logits.shape[1] >= WIDE else CrossEntropyBackward
    return kind(
        parts.layer,
        parts,
        graph.array(operation.grad) if scale is None else scale,
        graph.array(through.out),
    )


_USES = (NllLossForwardOp, NllLossBackwardOp, LogSoftmaxBackwardOp)


def _parts(
    forward: LogSoftmaxOp, loss: NllLossForwardOp | NllLossBackwardOp, graph: Graph
) -> Parts:
    stem = graph.array(forward.out).name
    labels, padding = labels_of(loss, graph)
    return Parts(
        graph.array(forward.x),
        labels,
        loss.ignore_index.value.data,
        padding,
        source_of_labels(loss.labels) is not None,
        graph.layer_of(forward),
        stem,
    )


MATCHERS: dict[str, Matcher] = {
    NllLossForwardOp.name: match_forward,
    NllLossBackwardOp.name: match_backward,
}
