"""Functions of tensors: arithmetic, sums along axes, losses, the choice of a class.

Operators such as + are the tensor's own; activations have a file of theirs.
"""

from math import prod

from csrun.base.mode import PADDING_LABEL
from csrun.cirh.ops import arithmetic, loss, model
from csrun.cirh.ops.shape import ViewOp
from csrun.cirh.types import tensor_type
from csrun.nn.errors import ShapeError, located, user_line
from csrun.nn.tensor import Tensor

Axes = int | tuple[int, ...]


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return x.tracer.emit(arithmetic.ExpOp, x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return x.tracer.emit(arithmetic.LogOp, x)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return x.tracer.emit(arithmetic.SqrtOp, x)


def sum(x: Tensor, axis: Axes = -1, keepdims: bool = False) -> Tensor:
    """The sum along one or several axes.

    Raises: ShapeError for an axis that x does not have, or the same one twice
    """
    return _total("sum", x, _axes("sum", x, axis), keepdims)


def mean(x: Tensor, axis: Axes = -1, keepdims: bool = False) -> Tensor:
    """The mean along one or several axes of each sample.

    Raises: ShapeError for an axis that x does not have, the same one twice, or the batch's: an
    incomplete batch has rows that do not count
    """
    axes = _axes("mean", x, axis)
    if 0 in axes:
        raise ShapeError(
            f"{user_line()}: mean: axis 0 is the batch's, whose rows do not all count; sum over it "
            "and divide by the number that does"
        )
    total = _total("mean", x, axes, keepdims)
    return total / float(prod(x.shape[a] for a in axes))


def _total(name: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    with located(name):
        return x.tracer.emit(arithmetic.SumOp, x, dims=axes, keepdim=keepdims)


def _axes(name: str, x: Tensor, axis: Axes) -> tuple[int, ...]:
    """The axes counted from the first one, in order."""
    given = axis if isinstance(axis, tuple) else (axis,)
    rank = len(x.shape)
    axes = tuple(sorted(a % rank if rank else a for a in given))
    if not given or not all(-rank <= a < rank for a in given) or len(set(axes)) < len(axes):
        raise ShapeError(f"{user_line()}: {name}: axis {axis} does not fit shape {list(x.shape)}")
    return axes


def flatten(x: Tensor) -> Tensor:
    """All axes but the batch as one.

    Shapes: [B, ...] -> [B, N]
    """
    with located("flatten"):
        return view(x, (x.shape[0], prod(x.shape[1:])))


def view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in row-major order under another shape; x itself when it has that shape."""
    return x if x.shape == shape else x.tracer.emit(ViewOp, x, shape=shape)


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the batch's valid rows of -log softmax(logits)[label].

    Shapes: logits [B, C], labels [B] integers in 0..C-1 -> a number
    Raises: ShapeError when shapes or types do not fit
    """
    tracer = logits.tracer
    with located("softmax_cross_entropy"):
        tracer.set_classes(labels, logits.shape[-1])
        log_probabilities = tracer.emit(loss.LogSoftmaxOp, logits, dim=len(logits.shape) - 1)
        total = tracer.emit(
            loss.NllLossForwardOp, log_probabilities, labels, ignore_index=PADDING_LABEL
        )
        rows = Tensor(tracer, tracer.builder.leaf(model.RowsOp, tensor_type((), logits.dtype)))
        return tracer.emit(arithmetic.DivOp, total, rows)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """The index of the largest value along an axis, the first of equals.

    Shapes: [..., C, ...] -> [..., ...], int64
    """
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(f"{user_line()}: argmax: axis {axis} is not one of {x.shape}")
    return x.tracer.emit(arithmetic.ArgmaxOp, x, dim=axis % len(x.shape))
