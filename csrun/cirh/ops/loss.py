"""Log-softmax and the negative log-likelihood loss, forward and backward."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    BackwardOp,
    CirhOp,
    Properties,
    Types,
    UnaryOp,
    axis,
    integer,
    number,
    require_rank,
)
from csrun.cirh.ops.model import require_scalar
from csrun.cirh.types import Tensor, dtype_of, is_integer, shape_of, tensor_type, text_of

IGNORE_INDEX = -100  # ATen's label of rows that do not count


@irdl_op_definition
class LogSoftmaxOp(UnaryOp):
    """x - log(sum(exp(x))) along `dim`."""

    name = "cirh.log_softmax"
    dim = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        axis(properties, types[0])
        return types[0]

    def gradients(self, back: Backward) -> Gradients:
        """g - softmax(x) * sum(g), from the saved result."""
        dim = integer(self.properties, "dim")
        return [back.emit(LogSoftmaxBackwardOp, back.grad, self.out, dim=dim)]

    def compute(self, x: Any) -> Any:
        """x - log(sum(exp(x))), shifted by the maximum against overflow."""
        dim = integer(self.properties, "dim")
        shifted = x - x.max(axis=dim, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))


@irdl_op_definition
class LogSoftmaxBackwardOp(BackwardOp):
    """grad - exp(y) * sum(grad) along `dim`; saved is the output y."""

    name = "cirh.log_softmax_backward_data"
    dim = prop_def(IntegerAttr)

    def compute(self, grad: Any, out: Any) -> Any:
        """grad - softmax * sum(grad)."""
        return grad - np.exp(out) * grad.sum(axis=integer(self.properties, "dim"), keepdims=True)


@irdl_op_definition
class NllLossForwardOp(CirhOp):
    """Sum over rows of -x[row, label]; rows labelled `ignore_index` do not count.

    With `label_smoothing` s it is (1 - s) of that plus s times the mean of a row's -x.
    """

    name = "cirh.nll_loss_forward"
    x = operand_def(TensorType)
    labels = operand_def(TensorType)
    ignore_index = prop_def(IntegerAttr)
    label_smoothing = opt_prop_def(FloatAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[B, C], labels [B] -> scalar."""
        require_labels(types[0], types[1])
        if not 0 <= smoothing_of(properties) <= 1:
            raise VerifyException(
                f"label_smoothing must be in [0, 1], got {smoothing_of(properties)}"
            )
        return tensor_type((), dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """-g at each row's label; labels have no gradient."""
        return [back.emit(NllLossBackwardOp, back.grad, *back.operands, **back.options()), None]

    def compute(self, x: Any, labels: Any) -> Any:
        """Shapes: x [B, C], labels [B] -> scalar sum"""
        (rows,) = np.nonzero(labels != integer(self.properties, "ignore_index"))
        s = smoothing_of(self.properties)
        loss = -x[rows, labels[rows]].sum()
        return (1 - s) * loss - s * x[rows].mean(axis=1).sum() if s else loss


@irdl_op_definition
class NllLossBackwardOp(CirhOp):
    """-grad at each row's label, 0 elsewhere and in rows labelled `ignore_index`.

    With `label_smoothing` s it is (1 - s) of that, and -s / C grad everywhere in rows that count.
    """

    name = "cirh.nll_loss_backward"
    TAKES_TEXT: ClassVar = ("grad",)
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    labels = operand_def(TensorType)
    ignore_index = prop_def(IntegerAttr)
    label_smoothing = opt_prop_def(FloatAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Scalar gradient, x [B, C], labels [B] -> [B, C]."""
        require_scalar(types[0])
        require_labels(types[1], types[2])
        return types[1]

    def compute(self, grad: Any, x: Any, labels: Any) -> Any:
        """Shapes: grad scalar, x [B, C], labels [B] -> [B, C]"""
        (rows,) = np.nonzero(labels != integer(self.properties, "ignore_index"))
        out = np.zeros_like(x)
        s = smoothing_of(self.properties)
        out[rows] = -s / x.shape[1] * grad
        out[rows, labels[rows]] -= (1 - s) * grad
        return out


def smoothing_of(properties: Properties) -> float:
    """Return the share of a loss that is spread over all classes."""
    return number(properties, "label_smoothing") if "label_smoothing" in properties else 0.0


def require_labels(x: Tensor, labels: Tensor) -> None:
    """Raises: VerifyException unless `labels` are integers, one per row of `x`"""
    require_rank(x, 2, "the logits")
    if not is_integer(labels):
        raise VerifyException(f"labels must be integers, got {dtype_of(labels)}")
    if shape_of(labels) != shape_of(x)[:1]:
        raise VerifyException(
            f"labels must have one entry per row of {text_of(x)}, got shape {text_of(labels)}"
        )


OPS = (LogSoftmaxOp, LogSoftmaxBackwardOp, NllLossForwardOp, NllLossBackwardOp)
