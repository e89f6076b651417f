"""Matrix products."""

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    ASSEMBLY,
    CirhOp,
    Properties,
    Types,
    require_rank,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


def product_type(a: Tensor, b: Tensor) -> Tensor:
    """[m, k] x [k, n] -> [m, n].

    Raises: VerifyException when the inner sizes differ
    """
    require_rank(a, 2, "the left matrix")
    require_rank(b, 2, "the right matrix")
    require_same_dtype((a, b))
    (m, k), (k2, n) = shape_of(a), shape_of(b)
    if k != k2:
        raise VerifyException(
            f"the last axis of {text_of(a)} must equal the first of {text_of(b)}, {k} is not {k2}"
        )
    return tensor_type((m, n), dtype_of(a))


@irdl_op_definition
class MmOp(CirhOp):
    """A matrix product."""

    name = "cirh.mm"
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[m, k] x [k, n] -> [m, n]."""
        return product_type(types[0], types[1])


@irdl_op_definition
class AddmmOp(CirhOp):
    """bias + lhs x rhs, the bias added to each row."""

    name = "cirh.addmm"
    bias = operand_def(TensorType)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[n] + [m, k] x [k, n] -> [m, n]."""
        require_same_dtype(types)
        out = product_type(types[1], types[2])
        if shape_of(types[0]) != shape_of(out)[1:]:
            raise VerifyException(
                f"bias must have shape [{shape_of(out)[1]}], got {text_of(types[0])}"
            )
        return out


OPS = (MmOp, AddmmOp)
