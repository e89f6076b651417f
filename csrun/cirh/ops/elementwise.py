"""Elementwise operators; two operands broadcast as in NumPy."""

from itertools import zip_longest

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import ASSEMBLY, CirhOp, Properties, Types, UnaryOp, require_same_dtype
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


class BinaryOp(CirhOp):
    """Two operands that broadcast."""

    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_same_dtype(types)
        return tensor_type(broadcast(types[0], types[1]), dtype_of(types[0]))


def broadcast(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """The shape that two tensors broadcast to.

    Raises: VerifyException when an axis differs and neither side is 1
    """
    shape = []
    for m, n in zip_longest(shape_of(a)[::-1], shape_of(b)[::-1], fillvalue=1):
        if m != n and 1 not in (m, n):
            raise VerifyException(f"shapes {text_of(a)} and {text_of(b)} do not broadcast")
        shape.append(n if m == 1 else m)
    return tuple(shape[::-1])


@irdl_op_definition
class AddOp(BinaryOp):
    """lhs + rhs."""

    name = "cirh.add"


@irdl_op_definition
class SubOp(BinaryOp):
    """lhs - rhs."""

    name = "cirh.sub"


@irdl_op_definition
class MulOp(BinaryOp):
    """lhs * rhs."""

    name = "cirh.mul"


@irdl_op_definition
class DivOp(BinaryOp):
    """lhs / rhs."""

    name = "cirh.div"


@irdl_op_definition
class NegOp(UnaryOp):
    """-x."""

    name = "cirh.neg"


@irdl_op_definition
class ExpOp(UnaryOp):
    """e to the power x."""

    name = "cirh.exp"


@irdl_op_definition
class LogOp(UnaryOp):
    """Natural logarithm."""

    name = "cirh.log"


@irdl_op_definition
class SqrtOp(UnaryOp):
    """Square root."""

    name = "cirh.sqrt"


OPS = (AddOp, SubOp, MulOp, DivOp, NegOp, ExpOp, LogOp, SqrtOp)
