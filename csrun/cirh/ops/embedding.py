"""Embedding lookup, forward and backward."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import CirhOp, Properties, Reads, Types, integer, require_rank
from csrun.cirh.types import Tensor, dtype_of, is_integer, shape_of, tensor_type, text_of, type_of

NO_PADDING = -1  # ATen's value: every row of the table is trained


@irdl_op_definition
class EmbeddingOp(CirhOp):
    """The row of the weight that each index names; row `padding_idx` gets no gradient."""

    name = "cirh.embedding"
    READS: ClassVar = Reads.CONTIGUOUS
    weight = operand_def(TensorType)
    indices = operand_def(TensorType)
    padding_idx = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """weight [V, D], indices [...] -> [..., D]."""
        weight, indices = types
        require_rank(weight, 2, "the weight")
        require_indices(indices)
        require_padding(properties, shape_of(weight)[0])
        return tensor_type((*shape_of(indices), shape_of(weight)[1]), dtype_of(weight))

    def gradients(self, back: Backward) -> Gradients:
        """g summed by row of the weight; indices have no gradient."""
        weight, indices = back.operands
        grad = back.emit(
            EmbeddingDenseBackwardOp,
            back.grad,
            indices,
            num_weights=shape_of(type_of(weight))[0],
            padding_idx=integer(self.properties, "padding_idx"),
        )
        return [grad, None]

    def compute(self, weight: Any, indices: Any) -> Any:
        """Rows of the weight."""
        return weight[indices]


@irdl_op_definition
class EmbeddingDenseBackwardOp(CirhOp):
    """For each row of the weight the sum of the gradients of its lookups."""

    name = "cirh.embedding_dense_backward"
    READS: ClassVar = Reads.CONTIGUOUS
    ADDS_UP: ClassVar = True
    grad = operand_def(TensorType)
    indices = operand_def(TensorType)
    num_weights = prop_def(IntegerAttr)
    padding_idx = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [..., D], indices [...] -> [num_weights, D]."""
        grad, indices = types
        require_indices(indices)
        if shape_of(grad)[:-1] != shape_of(indices) or not shape_of(grad):
            raise VerifyException(
                f"the gradient must have one row per index of {text_of(indices)}, got "
                f"{text_of(grad)}"
            )
        rows = integer(properties, "num_weights")
        require_padding(properties, rows)
        return tensor_type((rows, shape_of(grad)[-1]), dtype_of(grad))

    def compute(self, grad: Any, indices: Any) -> Any:
        """Gradients summed by row of the weight."""
        out = np.zeros((integer(self.properties, "num_weights"), grad.shape[-1]), grad.dtype)
        np.add.at(out, indices, grad)
        padding = integer(self.properties, "padding_idx")
        if padding != NO_PADDING:
            out[padding] = 0
        return out


def require_indices(kind: Tensor) -> None:
    """Raises: VerifyException unless these are integers"""
    if not is_integer(kind) or dtype_of(kind) == "bool":
        raise VerifyException(f"indices must be integers, got {dtype_of(kind)}")


def require_padding(properties: Properties, rows: int) -> None:
    """Raises: VerifyException unless `padding_idx` is a row of the table, or -1 for none"""
    padding = integer(properties, "padding_idx")
    if not NO_PADDING <= padding < rows:
        raise VerifyException(f"padding_idx must be in -1..{rows - 1}, got {padding}")


OPS = (EmbeddingOp, EmbeddingDenseBackwardOp)
