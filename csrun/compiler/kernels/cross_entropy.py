"""Selection of cross entropy kernels: one pass for few classes, row by row for many."""

from xdsl.ir import Operation

from csrun.cirh.batch_axes.label_sources import source_of_labels
from csrun.cirh.ops.arithmetic import DivOp
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
    smoothing_of,
)
from csrun.cirh.ops.model import LossOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.cirh.ops.vocab_shards import NllLossOfSumsOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS, Graph
from csrun.compiler.graph.kernel import Kernel, Matcher
from csrun.compiler.kernels.padding import labels_of
from csrun.compiler.kernels.softmax_cross_entropy import (
    LossOperands,
    LossSum,
    NarrowBackward,
    NarrowForward,
    NllBackward,
    WideBackward,
    WideForward,
)

WIDE = 128  # classes from which reductions along a row are faster than a transpose


def match_forward(operation: Operation, graph: Graph) -> tuple[Kernel, ...]:
    """Match log_softmax, nll_loss_forward, the division by the count, and the loss mark.

    The first kernel computes the losses of rows from the logits, the second one their sum and mean;
    log_softmax gets a separate kernel if others read it.
    """
    assert isinstance(operation, NllLossForwardOp)
    softmax = operation.x.owner
    if not isinstance(softmax, LogSoftmaxOp) or softmax.dim.value.data != 1:
        return ()
    if is_all_in_losses(softmax, graph):
        graph.take(softmax)
    parts = _parts(softmax, operation, graph)
    kind = WideForward if parts.logits.shape[1] >= WIDE else NarrowForward
    return kind(parts.layer, parts), loss_sum(operation, parts, graph)


def loss_sum(
    operation: NllLossForwardOp | NllLossOfSumsOp, parts: LossOperands, graph: Graph
) -> LossSum:
    """Return the kernel of a loss's sum, and its mean if that is read.

    Takes the operators that compute the mean. A sum is treated as the mean over one.
    """
    total = Array(f"{parts.stem}/sum", LOSS.shape, LOSS.dtype)
    mean = graph.only_user(operation.out)
    if not (isinstance(mean, DivOp) and isinstance(mean.rhs.owner, LabelCountOp)):
        graph.take(operation)
        return LossSum(parts.layer, parts, total, graph.array(operation.out), "1")
    count = graph.number(mean.rhs)
    readers = graph.users(mean.out)
    is_the_mean = count == f"step.counts[{graph.loss_count()}]"
    marks = [op for op in readers if isinstance(op, LossOp) and is_the_mean]
    graph.take(operation, mean, *marks)
    return LossSum(
        parts.layer,
        parts,
        LOSS if marks else total,
        graph.array(mean.out) if len(readers) > len(marks) else None,
        graph.array(mean.rhs) if count is None else count,
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """Match the gradient of a sum, through nll_loss_backward and log_softmax's backward if nothing
    else reads them.
    """
    assert isinstance(operation, NllLossBackwardOp)
    forward, through = operation.x.owner, _through(operation, graph)
    if not isinstance(forward, LogSoftmaxOp):
        return None
    graph.take(operation)
    parts = _parts(forward, operation, graph)
    scale = graph.number(operation.grad) or graph.array(operation.grad)
    if through is None:
        return NllBackward(parts.layer, parts, scale, graph.array(operation.out))
    graph.take(through)
    kind = WideBackward if parts.logits.shape[1] >= WIDE else NarrowBackward
    return kind(parts.layer, parts, scale, graph.array(through.out))


def is_all_in_losses(softmax: LogSoftmaxOp, graph: Graph) -> bool:
    """Return whether only loss kernels read the result, and they need only the logits."""
    return all(
        isinstance(op, NllLossForwardOp | NllLossBackwardOp)
        or (isinstance(op, LogSoftmaxBackwardOp) and _is_through(op, graph))
        for op in graph.users(softmax.out)
    )


def _is_through(op: LogSoftmaxBackwardOp, graph: Graph) -> bool:
    loss = op.grad.owner
    return isinstance(loss, NllLossBackwardOp) and _through(loss, graph) is op


def _through(loss: NllLossBackwardOp, graph: Graph) -> LogSoftmaxBackwardOp | None:
    """Return the log_softmax backward that is the only reader of a loss's gradient."""
    user = graph.only_user(loss.out)
    return user if isinstance(user, LogSoftmaxBackwardOp) and user.saved is loss.x else None


def _parts(
    forward: LogSoftmaxOp, loss: NllLossForwardOp | NllLossBackwardOp, graph: Graph
) -> LossOperands:
    """Return names of the arrays of a loss; several losses of the same logits differ by their
    labels.
    """
    labels, padding = labels_of(loss, graph)
    users = (op for op in graph.users(forward.out) if isinstance(op, NllLossForwardOp))
    used = [(op.labels, op.ignore_index, op.label_smoothing) for op in users]
    place = used.index((loss.labels, loss.ignore_index, loss.label_smoothing))
    stem = graph.array(forward.out).name
    return LossOperands(
        graph.array(forward.x),
        labels,
        loss.ignore_index.value.data,
        smoothing_of(loss.properties),
        padding,
        source_of_labels(loss.labels) is not None,
        graph.layer_of(forward),
        f"{stem}/loss_{place}" if place else stem,
    )


MATCHERS: dict[str, Matcher] = {
    NllLossForwardOp.name: match_forward,
    NllLossBackwardOp.name: match_backward,
}
