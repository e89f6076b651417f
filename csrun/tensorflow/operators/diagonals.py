"""Diagonals and bands of matrices."""

from typing import Any

import numpy as np

from csrun import nn
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value


def band_part(e: GraphEmission, op: Any, x: Value, lower: Value, upper: Value) -> Value:
    """Return x with zeros beyond these numbers of diagonals; a negative number keeps all."""
    value = e.tensor(x)
    (below,), (above,) = e.integers(lower, "num_lower"), e.integers(upper, "num_upper")
    rows, columns = np.indices(value.shape[-2:])
    kept = (below < 0) | (rows - columns <= below)
    kept &= (above < 0) | (columns - rows <= above)
    return nn.where(e.tensor(kept), value, _zero(e, value))


def diagonal_matrix(
    e: GraphEmission, op: Any, diagonal: Value, k: Value, rows: Value, columns: Value, rest: Value
) -> Value:
    """Matrices with this diagonal. Shapes: [..., N] -> [..., N, N]"""
    _require_main(e, k)
    value = e.tensor(diagonal)
    sizes = {*e.integers(rows, "num_rows"), *e.integers(columns, "num_cols")}
    if not sizes <= {-1, value.shape[-1]}:
        raise UnsupportedOperator("num_rows and num_cols must be the size of the diagonal")
    other = _zero(e, value) if not np.any(e.constant(rest, "the padding")) else e.tensor(rest)
    return _placed(e, value, other, value.shape[-1], value.shape[-1])


def diagonal_of(e: GraphEmission, op: Any, x: Value, k: Value, rest: Value) -> Value:
    """Diagonal of matrices. Shapes: [..., M, N] -> [..., min(M, N)]"""
    _require_main(e, k)
    value = e.tensor(x)
    count = min(value.shape[-2:])
    square = value[..., :count, :count]
    is_on = e.tensor(np.eye(count, dtype=bool))
    return nn.sum(nn.where(is_on, square, _zero(e, value)), -1).astype(value.dtype)


def with_diagonal(e: GraphEmission, op: Any, x: Value, diagonal: Value, k: Value) -> Value:
    """Matrices with another diagonal. Shapes: x [..., M, N], diagonal [..., min(M, N)] -> x's"""
    _require_main(e, k)
    value = e.tensor(x)
    rows, columns = value.shape[-2:]
    if rows != columns:
        raise UnsupportedOperator(f"the matrices must be square, got {rows} x {columns}")
    return _placed(e, e.tensor(diagonal), value, rows, columns)


def _placed(e: GraphEmission, diagonal: Tensor, other: Tensor, rows: int, columns: int) -> Tensor:
    is_on = e.tensor(np.eye(rows, columns, dtype=bool))
    return nn.where(is_on, nn.reshape(diagonal, (*diagonal.shape, 1)), other)


def _require_main(e: GraphEmission, k: Value) -> None:
    """Raises: UnsupportedOperator for another diagonal than the main one"""
    if set(e.integers(k, "k")) != {0}:
        raise UnsupportedOperator("only the main diagonal is supported: leave k out")


def _zero(e: GraphEmission, like: Tensor) -> Tensor:
    return e.tensor(np.zeros((), like.dtype))


EMITTERS: dict[str, Emitter] = {
    "MatrixBandPart": band_part,
    "MatrixDiagV3": diagonal_matrix,
    "MatrixDiagPartV3": diagonal_of,
    "MatrixSetDiagV3": with_diagonal,
}
