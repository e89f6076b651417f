"""Operators on one shard of a table: rows `first`, `first` + 1, … of a matrix.

A lookup takes from each shard the rows in it. A cross entropy whose logits are products with the
table's rows runs shard by shard, forward and backward: the full logits never exist.

Source: the running maximum and sum of Milakov and Gimelshein 2018, Online normalizer calculation
for softmax, kept as their log-sum-exp
"""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    Reads,
    Types,
    integer,
    require_rank,
    require_same,
)
from csrun.cirh.ops.embedding import NO_PADDING, require_indices
from csrun.cirh.ops.loss import require_labels
from csrun.cirh.ops.model import require_scalar
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


@irdl_op_definition
class EmbeddingPartOp(CirhOp):
    """Running lookup, with the rows of those indices that are in the shard.

    Without `before`, other rows are zero. The table has `num_weights` rows.
    """

    name = "cirh.embedding_part"
    READS: ClassVar = Reads.CONTIGUOUS
    WRITES_OVER: ClassVar = ("before",)
    weight = operand_def(TensorType)
    indices = operand_def(TensorType)
    before = var_operand_def(TensorType)
    num_weights = prop_def(IntegerAttr)
    first = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """weight [R, D], indices [...], before [..., D] -> [..., D]."""
        weight, indices, *before = types
        require_rank(weight, 2, "the weight")
        require_indices(indices)
        require_rows(properties, shape_of(weight)[0], integer(properties, "num_weights"))
        out = tensor_type((*shape_of(indices), shape_of(weight)[1]), dtype_of(weight))
        for kind in before:
            require_same(kind, out)
        return out

    def compute(self, weight: Any, indices: Any, before: Any = None) -> Any:
        """Rows of the weight, in place of those of `before`."""
        shape = (*indices.shape, weight.shape[1])
        out = np.zeros(shape, weight.dtype) if before is None else before.copy()
        local = indices - integer(self.properties, "first")
        inside = (local >= 0) & (local < len(weight))
        out[inside] = weight[local[inside]]
        return out


@irdl_op_definition
class EmbeddingPartBackwardOp(CirhOp):
    """For each row of the shard the sum of the gradients of its lookups."""

    name = "cirh.embedding_part_backward"
    READS: ClassVar = Reads.CONTIGUOUS
    ADDS_UP: ClassVar = True
    grad = operand_def(TensorType)
    indices = operand_def(TensorType)
    rows = prop_def(IntegerAttr)
    first = prop_def(IntegerAttr)
    padding_idx = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [..., D], indices [...] -> [rows, D]."""
        grad, indices = types
        require_indices(indices)
        if shape_of(grad)[:-1] != shape_of(indices) or not shape_of(grad):
            raise VerifyException(
                f"the gradient must have one row per index of {text_of(indices)}, got "
                f"{text_of(grad)}"
            )
        return tensor_type((integer(properties, "rows"), shape_of(grad)[-1]), dtype_of(grad))

    def compute(self, grad: Any, indices: Any) -> Any:
        """Gradients summed by row of the shard."""
        out = np.zeros((integer(self.properties, "rows"), grad.shape[-1]), grad.dtype)
        local = indices - integer(self.properties, "first")
        inside = (local >= 0) & (local < len(out))
        padding = integer(self.properties, "padding_idx")
        inside &= (indices != padding) | (padding == NO_PADDING)
        np.add.at(out, local[inside], grad[inside])
        return out


@irdl_op_definition
class LogSumExpPartOp(CirhOp):
    """Running log(sum(exp)) of each row of logits over the shards so far, and the label's logit.

    The logit is 0 if the label is not in the shards so far.
    """

    name = "cirh.log_sum_exp_part"
    x = operand_def(TensorType)
    labels = operand_def(TensorType)
    before = var_operand_def(TensorType)
    first = prop_def(IntegerAttr)
    sums = result_def(TensorType)
    picked = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """x [N, C], labels [N], of those before sums [N], picked [N] -> sums [N], picked [N]."""
        x, labels, *before = types
        require_labels(x, labels)
        row = tensor_type(shape_of(labels), dtype_of(x))
        if before not in ([], [row, row]):
            raise VerifyException("the running sums and picked logits must have one value per row")
        return row, row

    def compute(self, x: Any, labels: Any, *before: Any) -> Any:
        """Shapes: x [N, C], labels [N], sums, picked [N]"""
        top = x.max(axis=1)
        sums = np.log(np.exp(x - top[:, None]).sum(axis=1)) + top
        picked = np.zeros_like(sums)
        if before:
            sums, picked = np.logaddexp(before[0], sums), before[1].copy()
        local = labels - integer(self.properties, "first")
        inside = (local >= 0) & (local < x.shape[1])
        picked[inside] = x[inside, local[inside]]
        return sums, picked


@irdl_op_definition
class NllLossOfSumsOp(CirhOp):
    """Sum over rows of log(sum(exp)) minus the label's logit; `ignore_index` does not count."""

    name = "cirh.nll_loss_of_sums"
    sums = operand_def(TensorType)
    picked = operand_def(TensorType)
    labels = operand_def(TensorType)
    classes = prop_def(IntegerAttr)
    ignore_index = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """sums [N], picked [N], labels [N] -> scalar."""
        require_same(types[0], types[1])
        require_row_each(types[2], types[0])
        return tensor_type((), dtype_of(types[0]))

    def compute(self, sums: Any, picked: Any, labels: Any) -> Any:
        """Shapes: sums, picked, labels [N] -> scalar sum"""
        counted = labels != integer(self.properties, "ignore_index")
        return (sums - picked)[counted].sum()


@irdl_op_definition
class NllLossPartBackwardOp(CirhOp):
    """(exp(x - sums) - 1 at the label, if it is in this shard) grad; ignored rows are 0."""

    name = "cirh.nll_loss_part_backward"
    WRITES_OVER: ClassVar = ("x",)
    TAKES_TEXT: ClassVar = ("grad",)
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    sums = operand_def(TensorType)
    labels = operand_def(TensorType)
    first = prop_def(IntegerAttr)
    ignore_index = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Scalar gradient, x [N, C], sums [N], labels [N] -> [N, C]."""
        require_scalar(types[0])
        require_labels(types[1], types[3])
        require_row_each(types[3], types[2])
        return types[1]

    def compute(self, grad: Any, x: Any, sums: Any, labels: Any) -> Any:
        """Shapes: grad scalar, x [N, C], sums, labels [N] -> [N, C]"""
        out = np.exp(x - sums[:, None])
        local = labels - integer(self.properties, "first")
        inside = (local >= 0) & (local < x.shape[1])
        out[inside, local[inside]] -= 1
        out[labels == integer(self.properties, "ignore_index")] = 0
        return out * grad


def require_row_each(labels: Tensor, sums: Tensor) -> None:
    """Raises: VerifyException unless there is a number for each label"""
    require_indices(labels)
    if shape_of(labels) != shape_of(sums):
        raise VerifyException(
            f"labels and sums must have the same shape, got {text_of(labels)} and {text_of(sums)}"
        )


def require_rows(properties: Properties, rows: int, table: int) -> None:
    """Raises: VerifyException unless this many rows from `first` on are rows of the table"""
    first = integer(properties, "first")
    if not 0 <= first <= first + rows <= table:
        raise VerifyException(
            f"rows {first}..{first + rows} are out of range for a table of {table} rows"
        )


OPS = (
    EmbeddingPartOp,
    EmbeddingPartBackwardOp,
    LogSumExpPartOp,
    NllLossOfSumsOp,
    NllLossPartBackwardOp,
)
