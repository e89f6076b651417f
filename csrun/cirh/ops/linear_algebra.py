"""Factorizations and functions of small dense matrices, on the last two axes of each operand.

A matrix without a result gives NaN: one that is singular, or not positive definite.
Source: LAPACK's potrf, getrf, geqrf, orgqr, syevd, gesdd
"""

from collections.abc import Callable
from math import factorial
from typing import Any

import numpy as np
from xdsl.dialects.builtin import BoolAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import CirhOp, Properties, Types, integer, require_same_dtype
from csrun.cirh.types import Tensor, dtype_of, is_float, shape_of, tensor_type, text_of


class MatrixOp(CirhOp):
    """An operator on the matrices of the last two axes."""


def _sizes(kind: Tensor, is_square: bool = False) -> tuple[tuple[int, ...], int, int]:
    """Return the axes of the batch, and those of a matrix.

    Raises: VerifyException unless these are float matrices, square ones if asked
    """
    sizes = shape_of(kind)
    if len(sizes) < 2 or not is_float(kind):
        raise VerifyException(f"the operand must be matrices of floats, got {text_of(kind)}")
    *batch, rows, columns = sizes
    if is_square and rows != columns:
        raise VerifyException(f"matrices must be square, got {text_of(kind)}")
    return tuple(batch), rows, columns


def _each(function: Callable[..., Any], x: Any, *results: Any) -> Any:
    """Return a function's results for each matrix; NaN where it raises LinAlgError."""
    for place in np.ndindex(x.shape[:-2]):
        try:
            found = function(x[place])
        except np.linalg.LinAlgError:
            found = [np.full(out.shape[len(place) :], np.nan) for out in results]
        for out, each in zip(results, found, strict=True):
            out[place] = each
    return results


@irdl_op_definition
class CholeskyOp(MatrixOp):
    """Lower triangular L with x = L L^T; only the lower triangle of x is read.

    Shapes: x [..., N, N] -> out [..., N, N], info [...] int32, 1 if x is not positive definite
    """

    name = "cirh.cholesky"
    x = operand_def(TensorType)
    out = result_def(TensorType)
    info = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., N, N] -> the same, and [...]."""
        batch, _, _ = _sizes(types[0], is_square=True)
        return types[0], tensor_type(batch, "int32")

    def compute(self, x: Any) -> Any:
        (found,) = _each(lambda a: [np.linalg.cholesky(a)], x, np.empty_like(x))
        return found, np.isnan(found).any((-2, -1)).astype(np.int32)


@irdl_op_definition
class SolveTriangularOp(MatrixOp):
    """The solution of a x = b for a triangular matrix, of which the other triangle is not read.

    unitriangular: its diagonal counts as ones.

    Shapes: a [..., N, N], b [..., N, K] -> out [..., N, K]
    """

    name = "cirh.solve_triangular"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    upper = prop_def(BoolAttr)
    unitriangular = prop_def(BoolAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[..., N, N], [..., N, K] -> [..., N, K]."""
        require_same_dtype(types)
        batch, size, _ = _sizes(types[0], is_square=True)
        others, rows, _ = _sizes(types[1])
        if others != batch or rows != size:
            raise VerifyException(
                f"a side must have the rows of its matrix, got {text_of(types[0])} and "
                f"{text_of(types[1])}"
            )
        return types[1]

    def compute(self, a: Any, b: Any) -> Any:
        """Row by row."""
        is_upper, out = integer(self.properties, "upper"), np.empty_like(b)
        has_ones = integer(self.properties, "unitriangular")
        order = range(a.shape[-1])
        for row in reversed(order) if is_upper else order:
            known = slice(row + 1, None) if is_upper else slice(0, row)
            terms = a[..., row, known, None] * out[..., known, :]
            rest = b[..., row, :] - terms.sum(-2)
            out[..., row, :] = rest if has_ones else rest / a[..., row, row, None]
        return out


@irdl_op_definition
class LuFactorOp(MatrixOp):
    """L and U of x = P L U in one matrix, with the row that each row was exchanged with, from 1.

    Shapes: x [..., M, N] -> lu [..., M, N], pivots [..., min(M, N)] int32, info [...] int32, the
        first zero of U's diagonal, from 1, or 0
    """

    name = "cirh.lu_factor"
    x = operand_def(TensorType)
    lu = result_def(TensorType)
    pivots = result_def(TensorType)
    info = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., M, N] -> the same, [..., min(M, N)] and [...]."""
        batch, rows, columns = _sizes(types[0])
        pivots = tensor_type((*batch, min(rows, columns)), "int32")
        return types[0], pivots, tensor_type(batch, "int32")

    def compute(self, x: Any) -> Any:
        size = min(x.shape[-2:])
        results = (
            x.copy(),
            np.empty((*x.shape[:-2], size), np.int32),
            np.empty(x.shape[:-2], np.int32),
        )
        return _each(_lu, x, *results)


def _lu(x: Any) -> tuple[Any, Any, Any]:
    """Shapes: x [M, N] -> [M, N], [min(M, N)], []"""
    lu, pivots = x.copy(), []
    for k in range(min(x.shape)):
        row = k + int(np.abs(lu[k:, k]).argmax())
        pivots.append(row + 1)
        lu[[k, row]] = lu[[row, k]]
        if lu[k, k] != 0:
            lu[k + 1 :, k] /= lu[k, k]
            lu[k + 1 :, k + 1 :] -= np.outer(lu[k + 1 :, k], lu[k, k + 1 :])
    zeros = np.flatnonzero(np.diagonal(lu) == 0)
    return lu, pivots, zeros[0] + 1 if zeros.size else 0


@irdl_op_definition
class LuSolveOp(MatrixOp):
    """The solution of a x = b, or of a^T x = b, from the factors of `cirh.lu_factor`.

    Shapes: lu [..., N, N], pivots [..., N], b [..., N, K] -> out [..., N, K]
    """

    name = "cirh.lu_solve"
    lu = operand_def(TensorType)
    pivots = operand_def(TensorType)
    b = operand_def(TensorType)
    transposed = prop_def(BoolAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The type of b."""
        _sizes(types[0], is_square=True)
        return types[2]

    def compute(self, lu: Any, pivots: Any, b: Any) -> Any:
        ones = np.eye(lu.shape[-1])
        product = (np.tril(lu, -1) + ones) @ np.triu(lu)
        for place in np.ndindex(pivots.shape[:-1]):
            for row, other in reversed(list(enumerate(pivots[place] - 1))):
                product[place][[row, other]] = product[place][[other, row]]
        if integer(self.properties, "transposed"):
            product = product.swapaxes(-1, -2)
        return np.linalg.solve(product, b)


@irdl_op_definition
class InverseOp(MatrixOp):
    """Shapes: x [..., N, N] -> out [..., N, N], info [...] int32, 1 if x is singular"""

    name = "cirh.inverse"
    x = operand_def(TensorType)
    out = result_def(TensorType)
    info = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., N, N] -> the same, and [...]."""
        batch, _, _ = _sizes(types[0], is_square=True)
        return types[0], tensor_type(batch, "int32")

    def compute(self, x: Any) -> Any:
        (found,) = _each(lambda a: [np.linalg.inv(a)], x, np.empty_like(x))
        return found, np.isnan(found).any((-2, -1)).astype(np.int32)


@irdl_op_definition
class QrOp(MatrixOp):
    """x = q r, with orthonormal columns of q and an upper triangular r.

    complete: q is square.

    Shapes: x [..., M, N] -> q [..., M, K], r [..., K, N], K = min(M, N), or M if complete
    """

    name = "cirh.qr"
    x = operand_def(TensorType)
    complete = prop_def(BoolAttr)
    q = result_def(TensorType)
    r = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., M, N] -> [..., M, K], [..., K, N]."""
        batch, rows, columns = _sizes(types[0])
        size = rows if integer(properties, "complete") else min(rows, columns)
        kind = dtype_of(types[0])
        return tensor_type((*batch, rows, size), kind), tensor_type((*batch, size, columns), kind)

    def compute(self, x: Any) -> Any:
        return np.linalg.qr(x, "complete" if integer(self.properties, "complete") else "reduced")


@irdl_op_definition
class EighOp(MatrixOp):
    """Eigenvalues of symmetric matrices, ascending, and eigenvectors in the columns.

    Only the lower triangle is read, or the upper one.

    Shapes: x [..., N, N] -> values [..., N], vectors [..., N, N]
    """

    name = "cirh.eigh"
    x = operand_def(TensorType)
    upper = prop_def(BoolAttr)
    values = result_def(TensorType)
    vectors = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., N, N] -> [..., N], [..., N, N]."""
        batch, size, _ = _sizes(types[0], is_square=True)
        return tensor_type((*batch, size), dtype_of(types[0])), types[0]

    def compute(self, x: Any) -> Any:
        return np.linalg.eigh(x, "U" if integer(self.properties, "upper") else "L")


@irdl_op_definition
class SvdOp(MatrixOp):
    """Singular values, descending, with x = u diag(s) vh. complete: u and vh are square.

    Shapes: x [..., M, N] -> u [..., M, K], s [..., min(M, N)], vh [..., K, N], K = min(M, N); if
        complete, M for u and N for vh
    """

    name = "cirh.svd"
    x = operand_def(TensorType)
    complete = prop_def(BoolAttr)
    u = result_def(TensorType)
    s = result_def(TensorType)
    vh = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., M, N] -> [..., M, K], [..., min(M, N)], [..., K, N]."""
        batch, rows, columns = _sizes(types[0])
        size, is_complete = min(rows, columns), integer(properties, "complete")
        left, right = (rows, columns) if is_complete else (size, size)
        sizes = (rows, left), (size,), (right, columns)
        u, s, vh = (tensor_type((*batch, *each), dtype_of(types[0])) for each in sizes)
        return u, s, vh

    def compute(self, x: Any) -> Any:
        return np.linalg.svd(x, bool(integer(self.properties, "complete")))


@irdl_op_definition
class MatrixExpOp(MatrixOp):
    """The sum of all powers x^k / k!. Shapes: x [..., N, N] -> out [..., N, N]"""

    name = "cirh.matrix_exp"
    x = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's type."""
        _sizes(types[0], is_square=True)
        return types[0]

    def compute(self, x: Any) -> Any:
        """The series of x / 2^10, squared ten times."""
        small, powers = x / 1024, [np.broadcast_to(np.eye(x.shape[-1]), x.shape)]
        for _ in range(18):
            powers.append(powers[-1] @ small)
        found: Any = sum(power / factorial(k) for k, power in enumerate(powers))
        return np.linalg.matrix_power(found, 1024).astype(x.dtype) if found.size else x


@irdl_op_definition
class HouseholderProductOp(MatrixOp):
    """The first columns of the product of reflections 1 - tau v v^T.

    v is a column of x below the diagonal, 1 on it, and 0 above.

    Shapes: x [..., M, N], tau [..., K] -> out [..., M, N]
    """

    name = "cirh.householder_product"
    x = operand_def(TensorType)
    tau = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The type of x."""
        require_same_dtype(types)
        batch, rows, columns = _sizes(types[0])
        *others, count = shape_of(types[1])
        if tuple(others) != batch or not count <= columns <= rows:
            raise VerifyException(
                f"reflections must fit their matrix, got {text_of(types[0])} and "
                f"{text_of(types[1])}"
            )
        return types[0]

    def compute(self, x: Any, tau: Any) -> Any:
        rows, columns = x.shape[-2:]
        vectors = np.tril(x, -1) + np.eye(rows, columns)
        found: Any = np.eye(rows)
        for k in range(tau.shape[-1]):
            v = vectors[..., k, None]
            found = found @ (np.eye(rows) - tau[..., k, None, None] * v * v.swapaxes(-1, -2))
        return np.broadcast_to(found, (*x.shape[:-1], rows))[..., :columns].astype(x.dtype)


OPS = (
    CholeskyOp,
    SolveTriangularOp,
    LuFactorOp,
    LuSolveOp,
    InverseOp,
    QrOp,
    EighOp,
    SvdOp,
    MatrixExpOp,
    HouseholderProductOp,
)
