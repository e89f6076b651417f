"""Factorizations, solutions and functions of small dense matrices."""

from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops import linear_algebra as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, LogOp, MulOp
from csrun.cirh.ops.comparison import LeOp, MaximumOp, NeOp, WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.powers import AbsOp, SignOp
from csrun.cirh.ops.products import MatmulOp
from csrun.cirh.ops.reductions import AmaxOp, SumOp
from csrun.cirh.ops.shape import PermuteOp, SliceOp
from csrun.pytorch.operators.base import Emission, Emitter, dtype, rank, shape, unsupported
from csrun.pytorch.operators.constant_indices import read_at
from csrun.pytorch.operators.indexing import triangle
from csrun.pytorch.operators.scans import product_along


def transposed(e: Emission, x: SSAValue) -> SSAValue:
    """Emit matrices with their last two axes exchanged."""
    axes = list(range(rank(x)))
    return e.emit(PermuteOp, x, dims=(*axes[:-2], axes[-1], axes[-2]))


def _as_batch(e: Emission, *each: SSAValue) -> list[SSAValue]:
    """Emit the operands broadcast to a common batch shape, as one batch of matrices."""
    batch = np.broadcast_shapes(*(shape(x)[:-2] for x in each))
    return [e.expand(x, (*batch, *shape(x)[-2:])) for x in each]


def cholesky(
    e: Emission, x: SSAValue, upper: bool = False, check_errors: bool = False
) -> tuple[SSAValue, ...]:
    out, info = e.emit_all(ops.CholeskyOp, transposed(e, x) if upper else x)
    return (transposed(e, out) if upper else out), info


def inverse(e: Emission, x: SSAValue, check_errors: bool = False) -> tuple[SSAValue, ...]:
    return e.emit_all(ops.InverseOp, x)


def solve_triangular(
    e: Emission,
    a: SSAValue,
    b: SSAValue,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> SSAValue:
    """Emit the solution of a x = b, or of x a = b."""
    if not left:
        a, b, upper = transposed(e, a), transposed(e, b), not upper
    a, b = _as_batch(e, a, b)
    found = e.emit(ops.SolveTriangularOp, a, b, upper=upper, unitriangular=unitriangular)
    return found if left else transposed(e, found)


def cholesky_solve(e: Emission, b: SSAValue, factor: SSAValue, upper: bool = False) -> SSAValue:
    """Emit the solution of L L^T x = b, or of U^T U x = b."""
    lower, higher = transposed(e, factor), factor
    if not upper:
        lower, higher = higher, lower
    found = solve_triangular(e, lower, b, False)
    return solve_triangular(e, higher, found, True)


def cholesky_inverse(e: Emission, factor: SSAValue, upper: bool = False) -> SSAValue:
    """Emit the inverse of L L^T, or of U^T U."""
    size = shape(factor)[-1]
    unit = e.constant(np.eye(size, dtype=dtype(factor)))
    return cholesky_solve(e, e.expand(unit, shape(factor)), factor, upper)


def triangular_solve(
    e: Emission,
    b: SSAValue,
    a: SSAValue,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[SSAValue, SSAValue]:
    """Emit the solution of a x = b, or of a^T x = b, and a."""
    factor, is_upper = (transposed(e, a), not upper) if transpose else (a, upper)
    found = solve_triangular(e, factor, b, is_upper, unitriangular=unitriangular)
    return found, e.expand(a, (*shape(found)[:-2], *shape(a)[-2:]))


def lu_factor(
    e: Emission, x: SSAValue, pivot: bool = True, check_errors: bool = False
) -> tuple[SSAValue, ...]:
    if not pivot:
        raise unsupported("an LU factorization needs pivots", "pivot=False", "leave it out")
    return e.emit_all(ops.LuFactorOp, x)


def lu_unpack(
    e: Emission,
    lu: SSAValue,
    pivots: SSAValue,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[SSAValue | None, ...]:
    """Emit P, L and U of x = P L U."""
    none = e.full(0, dtype(lu), (0,))
    permutation = _permutation(e, pivots, shape(lu)[-2]) if unpack_pivots else none
    if not unpack_data:
        return permutation, none, none
    rows, columns = shape(lu)[-2:]
    size, last = min(rows, columns), rank(lu) - 1
    left = e.emit(SliceOp, lu, dim=last, start=0, end=size, step=1)
    right = e.emit(SliceOp, lu, dim=last - 1, start=0, end=size, step=1)
    ones = e.expand(e.constant(np.eye(rows, size, dtype=dtype(lu))), shape(left))
    below = e.expand(e.constant(np.tri(rows, size, -1, dtype=np.bool_)), shape(left))
    lower = e.emit(WhereOp, below, left, ones)
    return permutation, lower, triangle(True, e, right)


def _permutation(e: Emission, pivots: SSAValue, rows: int) -> SSAValue:
    """Emit P of x = P L U, the transposed solution with L and U of the unit matrix.

    Shapes: pivots [..., K] -> [..., rows, rows]
    """
    *batch, count = shape(pivots)
    if count < rows:
        own = e.constant(np.arange(count + 1, rows + 1, dtype=np.int32))
        more = e.expand(own, (*batch, rows - count))
        pivots = e.emit(CatOp, pivots, more, dim=len(batch))
    unit = e.expand(e.constant(np.eye(rows, dtype=e.dtype)), (*batch, rows, rows))
    return e.emit(ops.LuSolveOp, unit, pivots, unit, transposed=True)


def lu_of(e: Emission, x: SSAValue, *, pivot: bool = True) -> tuple[SSAValue | None, ...]:
    """Emit P, L and U of x."""
    lu, pivots, _ = lu_factor(e, x, pivot)
    return lu_unpack(e, lu, pivots)


def lu_solve(
    e: Emission,
    lu: SSAValue,
    pivots: SSAValue,
    b: SSAValue,
    left: bool = True,
    adjoint: bool = False,
) -> SSAValue:
    if pivots in e.pivots_of_determinants:
        adjoint = True
    if not left:
        b, adjoint = transposed(e, b), not adjoint
    batch = np.broadcast_shapes(shape(lu)[:-2], shape(b)[:-2])
    lu, b = _as_batch(e, lu, b)
    pivots = e.expand(pivots, (*batch, shape(pivots)[-1]))
    found = e.emit(ops.LuSolveOp, lu, pivots, b, transposed=adjoint)
    return found if left else transposed(e, found)


def solve(
    e: Emission, a: SSAValue, b: SSAValue, left: bool = True, check_errors: bool = False
) -> tuple[SSAValue, ...]:
    """Emit the solution of a x = b, with a's factors, of which the backward pass solves again."""
    lu, pivots, info = e.emit_all(ops.LuFactorOp, a)
    is_vector = rank(b) == 1 or shape(b) == shape(a)[:-1]
    column = e.view(b, (*shape(b), 1)) if is_vector else b
    found = lu_solve(e, lu, pivots, column, left=left or is_vector)
    return e.view(found, e.sizes), lu, pivots, info


def _exchange_sign(e: Emission, pivots: SSAValue, kind: str) -> SSAValue:
    """-1 for an odd number of exchanged rows. Shapes: [..., N] -> [...]"""
    own = e.constant(np.arange(1, shape(pivots)[-1] + 1, dtype=np.int32))
    is_exchanged = e.emit(NeOp, pivots, e.expand(own, shape(pivots)))
    signs = e.emit(
        AddOp,
        e.emit(MulOp, e.cast(is_exchanged, kind), e.full(-2, kind)),
        e.full(1, kind),
    )
    return _product(e, signs)


def _product(e: Emission, x: SSAValue) -> SSAValue:
    """Product over the last axis."""
    return e.view(product_along(e, x, rank(x) - 1), shape(x)[:-1])


def _diagonal(e: Emission, x: SSAValue) -> SSAValue:
    """Shapes: [..., M, N] -> [..., min(M, N)]"""
    *batch, rows, columns = shape(x)
    flat = e.view(x, (*batch, rows * columns))
    return read_at(e, flat, len(batch), np.arange(min(rows, columns)) * (columns + 1))


def _factors_of_determinant(e: Emission, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Emit L U and pivots.

    PyTorch factors x or, depending on its memory, the transposed matrix; the backward pass solves
    with the transposed one in both cases.
    """
    lu, pivots, _ = e.emit_all(ops.LuFactorOp, x)
    e.pivots_of_determinants.add(pivots)
    return lu, pivots


def determinant(e: Emission, x: SSAValue) -> tuple[SSAValue, ...]:
    lu, pivots = _factors_of_determinant(e, x)
    of_u = _product(e, _diagonal(e, lu))
    return e.emit(MulOp, of_u, _exchange_sign(e, pivots, dtype(x))), lu, pivots


def log_determinant(e: Emission, x: SSAValue) -> tuple[SSAValue, ...]:
    """Sign, logarithm of the absolute value, and factors."""
    lu, pivots = _factors_of_determinant(e, x)
    values = _diagonal(e, lu)
    sign = e.emit(MulOp, _product(e, e.emit(SignOp, values)), _exchange_sign(e, pivots, dtype(x)))
    logs = e.emit(LogOp, e.emit(AbsOp, values))
    return sign, e.emit(SumOp, logs, dims=(rank(logs) - 1,), keepdim=False), lu, pivots


def qr(e: Emission, x: SSAValue, mode: str = "reduced") -> tuple[SSAValue, ...]:
    if mode == "r":
        raise unsupported("qr needs q", "mode='r'", "use mode='reduced'")
    return e.emit_all(ops.QrOp, x, complete=mode == "complete")


def eigh(
    e: Emission, x: SSAValue, uplo: str = "L", compute_v: bool = True
) -> tuple[SSAValue | None, ...]:
    values, vectors = e.emit_all(ops.EighOp, x, upper=uplo.upper() == "U")
    return values, vectors if compute_v else None


def svd(
    e: Emission,
    x: SSAValue,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,
) -> tuple[SSAValue | None, ...]:
    u, s, vh = e.emit_all(ops.SvdOp, x, complete=full_matrices and compute_uv)
    return (u, s, vh) if compute_uv else (None, s, None)


def pseudo_inverse(
    e: Emission,
    x: SSAValue,
    *,
    atol: SSAValue | None = None,
    rtol: SSAValue | None = None,
    hermitian: bool = False,
) -> SSAValue:
    """Emit V diag(1 / s) U^T; singular values up to the larger limit count as 0.

    hermitian: of x only the lower triangle is read.
    """
    if hermitian:
        is_lower = e.constant(np.tri(shape(x)[-1], dtype=np.bool_))
        x = e.emit(WhereOp, e.expand(is_lower, shape(x)), x, transposed(e, x))
    u, s, vh = e.emit_all(ops.SvdOp, x, complete=False)
    kind = dtype(x)
    if rtol is None:
        is_exact = atol is not None
        rtol = e.full(0 if is_exact else float(np.finfo(kind).eps) * max(shape(x)[-2:]), kind)
    limit = e.emit(MulOp, e.emit(AmaxOp, s, dims=(rank(s) - 1,), keepdim=True), _column(e, rtol))
    if atol is not None:
        limit = e.emit(MaximumOp, limit, _column(e, atol))
    zero, one = e.full(0, kind), e.full(1, kind)
    is_zero = e.emit(LeOp, s, limit)
    inverse = e.emit(WhereOp, is_zero, zero, e.emit(DivOp, one, s))
    scaled = e.emit(MulOp, transposed(e, vh), e.view(inverse, (*shape(s)[:-1], 1, shape(s)[-1])))
    return e.emit(MatmulOp, scaled, transposed(e, u))


def _column(e: Emission, x: SSAValue) -> SSAValue:
    return e.view(x, (*shape(x), 1)) if rank(x) else x


def of_matrix(kind: type[ops.MatrixOp]) -> Emitter:
    """Return the emitter of an operator that takes ATen's operands."""
    return lambda e, *given: e.emit(kind, *given)


def unchecked(e: Emission, *given: Any, **options: Any) -> tuple[()]:
    """Emit nothing: a matrix without a result gives NaN."""
    return ()


EMITTERS: dict[str, Emitter] = {
    "aten.linalg_cholesky_ex.default": cholesky,
    "aten.cholesky.default": lambda e, x, upper=False: cholesky(e, x, upper)[0],
    "aten.cholesky_solve.default": cholesky_solve,
    "aten.cholesky_inverse.default": cholesky_inverse,
    "aten.triangular_solve.default": triangular_solve,
    "aten.linalg_inv_ex.default": inverse,
    "aten.linalg_solve_triangular.default": solve_triangular,
    "aten._linalg_solve_ex.default": solve,
    "aten.linalg_lu_factor_ex.default": lu_factor,
    "aten.linalg_lu_solve.default": lu_solve,
    "aten.linalg_lu.default": lu_of,
    "aten.lu_unpack.default": lu_unpack,
    "aten._linalg_det.default": determinant,
    "aten._linalg_slogdet.default": log_determinant,
    "aten.linalg_qr.default": qr,
    "aten._linalg_eigh.default": eigh,
    "aten._linalg_svd.default": svd,
    "aten.linalg_pinv.atol_rtol_tensor": pseudo_inverse,
    "aten.linalg_matrix_exp.default": of_matrix(ops.MatrixExpOp),
    "aten.linalg_householder_product.default": of_matrix(ops.HouseholderProductOp),
    "aten._linalg_check_errors.default": unchecked,
}
