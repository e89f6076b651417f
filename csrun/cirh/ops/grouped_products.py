"""Products of groups of rows, each group with a matrix of its own, as in a mixture of experts."""

from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import CirhOp, Properties, Types, require_rank, require_same_dtype
from csrun.cirh.ops.embedding import require_indices
from csrun.cirh.ops.products import product_type
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


def _require_ends(ends: Tensor) -> int:
    """Return the number of groups.

    Raises: VerifyException for ends that are no row of integers
    """
    require_indices(ends)
    require_rank(ends, 1, "the ends of the groups")
    (groups,) = shape_of(ends)
    return groups


@irdl_op_definition
class GroupedMmOp(CirhOp):
    """Product of each row with its group's matrix.

    Group g ends before row ends[g]; rows after the last group give zeros.

    Shapes: x [M, K], matrices [G, K, N], ends [G] -> out [M, N]
    """

    name = "cirh.grouped_mm"
    x = operand_def(TensorType)
    matrices = operand_def(TensorType)
    ends = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[M, K] x [G, K, N] -> [M, N]."""
        x, matrices, ends = types
        groups = _require_ends(ends)
        require_rank(matrices, 3, "the matrices")
        if shape_of(matrices)[0] != groups:
            raise VerifyException(f"{groups} groups need as many matrices, got {text_of(matrices)}")
        return product_type(x, tensor_type(shape_of(matrices)[1:], dtype_of(matrices)))

    def compute(self, x: Any, matrices: Any, ends: Any) -> Any:
        parts = np.split(x, ends)
        found = [part @ matrix for part, matrix in zip(parts, matrices, strict=False)]
        return np.concatenate([*found, np.zeros((len(parts[-1]), matrices.shape[2]), x.dtype)])


@irdl_op_definition
class GroupedOuterOp(CirhOp):
    """A product of two matrices for each group, over the columns and rows of the group.

    Shapes: lhs [M, K], rhs [K, N], ends [G] -> out [G, M, N]
    """

    name = "cirh.grouped_outer"
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    ends = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[M, K] x [K, N] -> [G, M, N]."""
        lhs, rhs, ends = types
        require_same_dtype((lhs, rhs))
        found = product_type(lhs, rhs)
        return tensor_type((_require_ends(ends), *shape_of(found)), dtype_of(found))

    def compute(self, lhs: Any, rhs: Any, ends: Any) -> Any:
        left, right = np.split(lhs, ends, axis=1), np.split(rhs, ends)
        return np.stack([a @ b for a, b in zip(left[:-1], right[:-1], strict=True)])


OPS = (GroupedMmOp, GroupedOuterOp)
