"""Loss functions, and the choice of a class."""

from csrun.base.mode import PADDING_LABEL
from csrun.cirh.ops.elementwise import DivOp
from csrun.cirh.ops.loss import LogSoftmaxOp, NllLossForwardOp
from csrun.cirh.ops.model import RowsOp
from csrun.cirh.ops.reduction import ArgmaxOp
from csrun.cirh.types import tensor_type
from csrun.nn.errors import ShapeError, located, user_line
from csrun.nn.tensor import Tensor


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the batch's valid rows of -log softmax(logits)[label].

    Shapes: logits [B, C], labels [B] integers in 0..C-1 -> a number
    Raises: ShapeError when shapes or types do not fit
    """
    tracer = logits.tracer
    with located("softmax_cross_entropy"):
        tracer.set_classes(labels, logits.shape[-1])
        log_probabilities = tracer.emit(LogSoftmaxOp, logits, dim=len(logits.shape) - 1)
        total = tracer.emit(NllLossForwardOp, log_probabilities, labels, ignore_index=PADDING_LABEL)
        rows = Tensor(tracer, tracer.builder.leaf(RowsOp, tensor_type((), logits.dtype)))
        return tracer.emit(DivOp, total, rows)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """The index of the largest value along an axis, the first of equals.

    Shapes: [..., C, ...] -> [..., ...], int64
    """
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(f"{user_line()}: argmax: axis {axis} is not one of {x.shape}")
    return x.tracer.emit(ArgmaxOp, x, dim=axis % len(x.shape))
