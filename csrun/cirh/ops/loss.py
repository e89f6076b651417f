"""Log-softmax and the negative log-likelihood loss, forward and backward."""

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    ASSEMBLY,
    BackwardOp,
    CirhOp,
    Properties,
    Types,
    UnaryOp,
    axis,
    require_rank,
)
from csrun.cirh.ops.model import require_scalar
from csrun.cirh.types import Tensor, dtype_of, is_integer, shape_of, tensor_type, text_of


@irdl_op_definition
class LogSoftmaxOp(UnaryOp):
    """x - log(sum(exp(x))) along `dim`."""

    name = "cirh.log_softmax"
    dim = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        axis(properties, types[0])
        return types[0]


@irdl_op_definition
class LogSoftmaxBackwardOp(BackwardOp):
    """grad - exp(y) * sum(grad) along `dim`; saved is the output y."""

    name = "cirh.log_softmax_backward_data"
    dim = prop_def(IntegerAttr)


@irdl_op_definition
class NllLossForwardOp(CirhOp):
    """The sum over rows of -x[row, label]; rows labelled `ignore_index` count nothing."""

    name = "cirh.nll_loss_forward"
    x = operand_def(TensorType)
    labels = operand_def(TensorType)
    ignore_index = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[B, C], labels [B] -> scalar."""
        require_labels(types[0], types[1])
        return tensor_type((), dtype_of(types[0]))


@irdl_op_definition
class NllLossBackwardOp(CirhOp):
    """-grad at each row's label, 0 elsewhere and in rows labelled `ignore_index`."""

    name = "cirh.nll_loss_backward"
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    labels = operand_def(TensorType)
    ignore_index = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Scalar gradient, x [B, C], labels [B] -> [B, C]."""
        require_scalar(types[0])
        require_labels(types[1], types[2])
        return types[1]


def require_labels(x: Tensor, labels: Tensor) -> None:
    """Raises: VerifyException unless `labels` are integers, one for each row of `x`."""
    require_rank(x, 2, "the logits")
    if not is_integer(labels):
        raise VerifyException(f"labels must be integers, got {dtype_of(labels)}")
    if shape_of(labels) != shape_of(x)[:1]:
        raise VerifyException(
            f"labels must have one entry for each row of {text_of(x)}, got shape {text_of(labels)}"
        )


OPS = (LogSoftmaxOp, LogSoftmaxBackwardOp, NllLossForwardOp, NllLossBackwardOp)
