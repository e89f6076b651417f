"""Elementwise operators (two operands broadcast as in NumPy), matrix products, reductions."""

from itertools import zip_longest

import numpy as np
from xdsl.dialects.builtin import (
    BoolAttr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    TensorType,
)
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    ASSEMBLY,
    CirhOp,
    Properties,
    Types,
    UnaryOp,
    axis,
    ints,
    require_rank,
    require_same_dtype,
)
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


@irdl_op_definition
class MatmulOp(CirhOp):
    """Matrix products over leading axes, which broadcast."""

    name = "cirh.matmul"
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[..., m, k] x [..., k, n] -> [..., m, n]."""
        if any(len(shape_of(t)) < 2 for t in types):
            raise VerifyException(
                f"both must be matrices, got {text_of(types[0])} and {text_of(types[1])}"
            )
        leads, matrices = ([_cut(t, part) for t in types] for part in (slice(-2), slice(-2, None)))
        out = shape_of(product_type(matrices[0], matrices[1]))
        return tensor_type((*broadcast(leads[0], leads[1]), *out), dtype_of(types[0]))


def _cut(kind: Tensor, part: slice) -> Tensor:
    return tensor_type(shape_of(kind)[part], dtype_of(kind))


@irdl_op_definition
class SumOp(CirhOp):
    """The sum over `dims`, which stay as axes of size 1 with `keepdim`."""

    name = "cirh.sum"
    x = operand_def(TensorType)
    dims = prop_def(DenseArrayBase)
    keepdim = prop_def(BoolAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without the summed axes."""
        own, dims = shape_of(types[0]), ints(properties, "dims")
        if len(set(dims)) != len(dims) or not set(dims) <= set(range(len(own))):
            raise VerifyException(f"dims must be axes of {types[0]}, got {list(dims)}")
        keep = properties["keepdim"] == BoolAttr.from_bool(True)
        shape = [1 if d in dims else n for d, n in enumerate(own) if keep or d not in dims]
        return tensor_type(shape, dtype_of(types[0]))


@irdl_op_definition
class ArgmaxOp(CirhOp):
    """The index of the largest value along `dim`, the first one when there are several."""

    name = "cirh.argmax"
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without axis `dim`, int64."""
        dim = axis(properties, types[0])
        shape = [n for d, n in enumerate(shape_of(types[0])) if d != dim]
        return tensor_type(shape, "int64")


@irdl_op_definition
class ToCopyOp(UnaryOp):
    """The same numbers as another element type: booleans as integers, integers as floats."""

    name = "cirh._to_copy"
    dtype = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes, of the new element type."""
        dtype = properties["dtype"]
        if not isinstance(dtype, StringAttr):
            raise VerifyException(f"dtype must be a name, got {dtype}")
        to = tensor_type(shape_of(types[0]), dtype.data)
        if not np.can_cast(dtype_of(types[0]), dtype.data, "same_kind"):
            raise VerifyException(f"{dtype_of(types[0])} does not become {dtype.data}")
        return to


OPS = (
    AddOp,
    SubOp,
    MulOp,
    DivOp,
    NegOp,
    ExpOp,
    LogOp,
    SqrtOp,
    ToCopyOp,
    MmOp,
    AddmmOp,
    MatmulOp,
    SumOp,
    ArgmaxOp,
)
