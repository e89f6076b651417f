"""Factorizations and functions of matrices, and Fourier transforms."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from support.operators.cases import Case, case, cases, normal

from csrun.cirh.ops import fourier, linear_algebra

SQUARES = normal(2, 4, 4)
SPD = SQUARES @ SQUARES.swapaxes(1, 2) + np.eye(4)
SINGULAR = np.stack([np.zeros((3, 3)), np.eye(3), np.ones((3, 3))])
WIDE, TALL = normal(2, 3, 5), normal(2, 5, 3)
LARGE = normal(21, 21) + 6 * np.eye(21)  # above the rows that are solved one by one
REAL, IMAG = normal(2, 6, 5), normal(2, 6, 5)


def _lu(torch, x):
    return torch.linalg.lu_factor_ex(x)


def _solved(torch, lu, pivots, b, transposed=False):
    return torch.linalg.lu_solve(lu, pivots, b, adjoint=transposed)


def _factors(x):
    import torch

    lu, pivots, _ = torch.linalg.lu_factor_ex(torch.from_numpy(x))
    return lu.numpy(), pivots.numpy()


def _triangular(torch, a, b, upper, unitriangular):
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unitriangular)


def _parts(found, scale=1.0):
    return found.real * scale, found.imag * scale


MATRICES: Sequence[Case] = (
    *cases(linear_algebra.CholeskyOp, lambda t, x: t.linalg.cholesky_ex(x), 2, SPD),
    *cases(linear_algebra.CholeskyOp, lambda t, x: t.linalg.cholesky_ex(x), 2, normal(0, 3, 3)),
    *cases(linear_algebra.InverseOp, lambda t, x: t.linalg.inv_ex(x), 2, SQUARES),
    *cases(linear_algebra.LuFactorOp, _lu, 3, SQUARES),
    *cases(linear_algebra.LuFactorOp, _lu, 3, SINGULAR),
    *cases(linear_algebra.LuFactorOp, _lu, 3, WIDE),
    *cases(linear_algebra.LuFactorOp, _lu, 3, TALL),
    *(
        case(
            linear_algebra.LuSolveOp,
            partial(_solved, transposed=transposed),
            *_factors(x),
            normal(*x.shape[:-1], 3),
            transposed=transposed,
        )
        for transposed in (False, True)
        for x in (SQUARES, LARGE)
    ),
    *(
        case(
            linear_algebra.SolveTriangularOp,
            partial(_triangular, upper=upper, unitriangular=ones),
            x,
            normal(*x.shape[:-1], 3),
            upper=upper,
            unitriangular=ones,
        )
        for upper, ones, x in ((False, False, SQUARES), (True, False, LARGE), (True, True, SPD))
    ),
    *cases(linear_algebra.QrOp, lambda t, x: t.linalg.qr(x), 2, TALL, complete=False),
    *cases(linear_algebra.QrOp, lambda t, x: t.linalg.qr(x, "complete"), 2, TALL, complete=True),
    *cases(linear_algebra.QrOp, lambda t, x: t.linalg.qr(x), 2, WIDE, complete=False),
    case(linear_algebra.EighOp, lambda t, x: t.linalg.eigvalsh(x), SQUARES, upper=False),
    case(linear_algebra.EighOp, lambda t, x: t.linalg.eigvalsh(x, "U"), SQUARES, upper=True),
    *(
        Case(linear_algebra.SvdOp, lambda t, x: t.linalg.svdvals(x), (x,), (("complete", c),), 1)
        for x in (WIDE, TALL)
        for c in (False, True)
    ),
    case(linear_algebra.MatrixExpOp, lambda t, x: t.matrix_exp(x), SQUARES / 4),
    case(linear_algebra.MatrixExpOp, lambda t, x: t.matrix_exp(x), -SPD),
    case(
        linear_algebra.HouseholderProductOp,
        lambda t, x, tau: t.linalg.householder_product(x, tau),
        TALL,
        normal(2, 2),
    ),
)
TRANSFORMS: Sequence[Case] = (
    *cases(
        fourier.FftR2cOp,
        lambda t, x: _parts(t.fft.fftn(x, dim=(1, 2)), 0.5),
        2,
        REAL,
        dims=(1, 2),
        scale=0.5,
        onesided=False,
    ),
    *cases(
        fourier.FftR2cOp,
        lambda t, x: _parts(t.fft.rfft(x, dim=1)),
        2,
        REAL,
        dims=(1,),
        scale=1.0,
        onesided=True,
    ),
    *cases(
        fourier.FftC2cOp,
        lambda t, x, y: _parts(t.fft.fft(t.complex(x, y), dim=0, norm="ortho")),
        2,
        REAL,
        IMAG,
        dims=(0,),
        scale=2**-0.5,
        inverse=False,
    ),
    *cases(
        fourier.FftC2cOp,
        lambda t, x, y: _parts(t.fft.ifft2(t.complex(x, y), norm="forward")),
        2,
        REAL,
        IMAG,
        dims=(1, 2),
        scale=1.0,
        inverse=True,
    ),
    *(
        case(
            fourier.FftC2rOp,
            lambda t, x, y, n=n: t.fft.irfftn(t.complex(x, y), s=(6, n), dim=(1, 2)),
            REAL,
            IMAG,
            dims=(1, 2),
            scale=1 / (6 * n),
            size=n,
        )
        for n in (8, 9)
    ),
)
WITHOUT_GRADIENT: Sequence[Case] = (*MATRICES, *TRANSFORMS)
