"""Elementwise operators (two operands broadcast as in NumPy), matrix products, reductions."""

from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import (
    StringAttr,
    TensorType,
)
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    ASSEMBLY,
    CirhOp,
    ElementwiseOp,
    Lies,
    Properties,
    Reads,
    Types,
    UnaryOp,
    require_rank,
    require_same,
    require_same_dtype,
)
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import PermuteOp, TransposeOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


class BinaryOp(ElementwiseOp):
    """Two operands that broadcast."""

    WRITES_OVER: ClassVar[tuple[str, ...]] = ("lhs", "rhs")
    #: Whether the operands may change places.
    COMMUTES: ClassVar[bool] = False
    #: What, on the right, leaves the left operand as it is.
    NEUTRAL: ClassVar[float | None] = None

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
    NUMBER: ClassVar = "({} + {})"
    COMMUTES: ClassVar = True
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 0.0
    LINEAR_IN: ClassVar = (frozenset({0, 1}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g, g)."""
        return [back.fit(i, back.grad) if back.wanted[i] else None for i in (0, 1)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.add(lhs, rhs)


@irdl_op_definition
class SubOp(BinaryOp):
    """lhs - rhs."""

    name = "cirh.sub"
    NUMBER: ClassVar = "({} - {})"
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 0.0
    LINEAR_IN: ClassVar = (frozenset({0, 1}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g, -g)."""
        left = back.fit(0, back.grad) if back.wanted[0] else None
        return [left, back.fitted(1, NegOp, back.grad)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.subtract(lhs, rhs)


@irdl_op_definition
class MulOp(BinaryOp):
    """lhs * rhs."""

    name = "cirh.mul"
    NUMBER: ClassVar = "({} * {})"
    COMMUTES: ClassVar = True
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 1.0
    LINEAR_IN: ClassVar = (frozenset({0}), frozenset({1}))

    def gradients(self, back: Backward) -> Gradients:
        """(g b, g a)."""
        return [
            back.fitted(0, MulOp, back.grad, self.rhs),
            back.fitted(1, MulOp, back.grad, self.lhs),
        ]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.multiply(lhs, rhs)


@irdl_op_definition
class DivOp(BinaryOp):
    """lhs / rhs."""

    name = "cirh.div"
    NUMBER: ClassVar = "({} / {})"
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 1.0
    LINEAR_IN: ClassVar = (frozenset({0}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g / b, -g (a / b) / b)."""
        emit, b = back.emit, self.rhs
        left = back.fitted(0, DivOp, back.grad, b)
        if not back.wanted[1]:
            return [left, None]
        slope = emit(NegOp, emit(DivOp, self.out, b))
        return [left, back.fit(1, emit(MulOp, back.grad, slope))]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.divide(lhs, rhs)


@irdl_op_definition
class NegOp(UnaryOp):
    """-x."""

    name = "cirh.neg"
    NUMBER: ClassVar = "(-{})"
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    LINEAR_IN: ClassVar = (frozenset({0}),)

    def gradients(self, back: Backward) -> Gradients:
        """-g."""
        return [back.emit(NegOp, back.grad)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.negative(x)


@irdl_op_definition
class ExpOp(UnaryOp):
    """e to the power x."""

    name = "cirh.exp"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g e^x, from the saved result."""
        return [back.emit(MulOp, back.grad, self.out)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.exp(x)


@irdl_op_definition
class LogOp(UnaryOp):
    """Natural logarithm."""

    name = "cirh.log"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g / x."""
        return [back.emit(DivOp, back.grad, self.x)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.log(x)


@irdl_op_definition
class SqrtOp(UnaryOp):
    """Square root."""

    name = "cirh.sqrt"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g / (2 sqrt(x)), from the saved result."""
        emit = back.emit
        return [emit(DivOp, back.grad, emit(AddOp, self.out, self.out))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.sqrt(x)


@irdl_op_definition
class ToCopyOp(UnaryOp):
    """The same numbers as another type; of floats the whole part, or whether they are not 0."""

    name = "cirh._to_copy"
    WRITES_OVER: ClassVar = ()
    LINEAR_IN: ClassVar = (frozenset({0}),)
    dtype = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes, of the new element type."""
        dtype = properties["dtype"]
        if not isinstance(dtype, StringAttr):
            raise VerifyException(f"dtype must be a name, got {dtype}")
        return tensor_type(shape_of(types[0]), dtype.data)

    def gradients(self, back: Backward) -> Gradients:
        """The gradient as the operand's type; what is no float has none."""
        return [back.emit(ToCopyOp, back.grad, dtype=dtype_of(type_of(self.x)))]

    def compute(self, x: Any) -> Any:
        """The numbers as another type."""
        dtype = self.properties["dtype"]
        assert isinstance(dtype, StringAttr)
        return x.astype(dtype.data)


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
            f"cannot multiply {text_of(a)} by {text_of(b)}: inner sizes {k} and {k2} differ"
        )
    return tensor_type((m, n), dtype_of(a))


@irdl_op_definition
class MmOp(CirhOp):
    """A matrix product."""

    name = "cirh.mm"
    READS: ClassVar = Reads.MATRICES
    ADDS_UP: ClassVar = True
    LIES: ClassVar = Lies.ROWS
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[m, k] x [k, n] -> [m, n]."""
        return product_type(types[0], types[1])

    def gradients(self, back: Backward) -> Gradients:
        """(g b^T, a^T g)."""
        return _factors(back, self.lhs, self.rhs, back.wanted)

    def compute(self, lhs: Any, rhs: Any) -> Any:
        return np.matmul(lhs, rhs)


@irdl_op_definition
class AddProductOp(CirhOp):
    """before + lhs x rhs: a product of long matrices, a part of them after the other."""

    name = "cirh.add_product"
    WRITES_OVER: ClassVar = ("before",)
    READS: ClassVar = Reads.MATRICES
    before = operand_def(TensorType)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[m, n] + [m, k] x [k, n] -> [m, n]."""
        out = product_type(types[1], types[2])
        require_same(types[0], out)
        return out

    def compute(self, before: Any, lhs: Any, rhs: Any) -> Any:
        return before + np.matmul(lhs, rhs)


@irdl_op_definition
class AddmmOp(CirhOp):
    """bias + lhs x rhs, the bias added to each row."""

    name = "cirh.addmm"
    READS: ClassVar = Reads.MATRICES
    LIES: ClassVar = Lies.ROWS
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

    def gradients(self, back: Backward) -> Gradients:
        """(sum of g over rows, g b^T, a^T g)."""
        bias = None
        if back.wanted[0]:
            bias = back.emit(SumOp, back.grad, dims=(0,), keepdim=False)
        return [bias, *_factors(back, self.lhs, self.rhs, back.wanted[1:])]

    def compute(self, bias: Any, a: Any, b: Any) -> Any:
        return bias + a @ b


@irdl_op_definition
class MatmulOp(CirhOp):
    """Matrix products over leading axes, which broadcast."""

    name = "cirh.matmul"
    READS: ClassVar = Reads.MATRICES
    BY_SAMPLE: ClassVar = True
    LIES: ClassVar = Lies.ROWS
    LINEAR_IN: ClassVar = (frozenset({0}), frozenset({1}))
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[..., m, k] x [..., k, n] -> [..., m, n]."""
        if any(len(shape_of(t)) < 2 for t in types):
            raise VerifyException(
                f"both operands must have at least 2 axes, got {text_of(types[0])} and "
                f"{text_of(types[1])}"
            )
        leads, matrices = ([_cut(t, part) for t in types] for part in (slice(-2), slice(-2, None)))
        out = shape_of(product_type(matrices[0], matrices[1]))
        return tensor_type((*broadcast(leads[0], leads[1]), *out), dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """(g b^T, a^T g), each summed over the leading axes that it was repeated along."""
        a, b = back.operands
        emit = back.emit
        left = emit(MatmulOp, back.grad, _swapped(b, back)) if back.wanted[0] else None
        right = emit(MatmulOp, _swapped(a, back), back.grad) if back.wanted[1] else None
        return [
            None if grad is None else back.fit(index, grad)
            for index, grad in enumerate((left, right))
        ]

    def compute(self, lhs: Any, rhs: Any) -> Any:
        return np.matmul(lhs, rhs)


def _cut(kind: Tensor, part: slice) -> Tensor:
    return tensor_type(shape_of(kind)[part], dtype_of(kind))


def _factors(
    back: Backward, a: SSAValue, b: SSAValue, wanted: tuple[bool, ...]
) -> list[SSAValue | None]:
    left = back.emit(MmOp, back.grad, back.emit(TransposeOp, b)) if wanted[0] else None
    right = back.emit(MmOp, back.emit(TransposeOp, a), back.grad) if wanted[1] else None
    return [left, right]


def _swapped(value: SSAValue, back: Backward) -> SSAValue:
    """The matrices transposed."""
    *leading, rows, columns = range(len(shape_of(type_of(value))))
    return back.emit(PermuteOp, value, dims=(*leading, columns, rows))


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
    AddProductOp,
    AddmmOp,
    MatmulOp,
)
