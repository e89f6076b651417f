"""Matrix products."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import broadcast
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    Reads,
    ResultLayout,
    Types,
    require_rank,
    require_same,
    require_same_dtype,
)
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import PermuteOp, TransposeOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


def product_type(a: Tensor, b: Tensor) -> Tensor:
    """Return the type of [m, k] x [k, n] -> [m, n].

    Raises: VerifyException if the inner sizes differ
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
    RESULT_LAYOUT: ClassVar = ResultLayout.ROWS
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

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
    """before + lhs x rhs: a partial sum of the product of long matrices."""

    name = "cirh.add_product"
    WRITES_OVER: ClassVar = ("before",)
    READS: ClassVar = Reads.MATRICES
    before = operand_def(TensorType)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

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
    RESULT_LAYOUT: ClassVar = ResultLayout.ROWS
    bias = operand_def(TensorType)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

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
    RESULT_LAYOUT: ClassVar = ResultLayout.ROWS
    LINEAR_IN: ClassVar = (frozenset({0}), frozenset({1}))
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

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
        """(g b^T, a^T g), each summed over the leading axes that it was broadcast along."""
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
    MmOp,
    AddProductOp,
    AddmmOp,
    MatmulOp,
)
