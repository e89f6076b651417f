"""Operators that csrun decomposes: grids, runs of equal values, pairs, special functions."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_near, named, row  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.pytorch.decompositions.grid_samples import affine_grid  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce")


def sampled(*sizes, mode="bilinear", padding="zeros", aligned=False):
    """Sample images [4, 2, *sizes] at their own grid points, some of them beyond the border."""
    options = {"mode": mode, "padding_mode": padding, "align_corners": aligned}

    def call(x):
        axes = len(sizes)
        places = 0.8 * x.flatten(1)[:, : 3 * axes].reshape(4, 3, *(1,) * (axes - 1), axes)
        return f.grid_sample(x, places, **options)

    return row(call, 2, *sizes)


def at_border(x):
    """Sample at the identity grid, as the border has no gradient by the grid."""
    ones = torch.eye(2, 3, dtype=x.dtype).expand(4, 2, 3)
    places = f.affine_grid(ones + 0 * x[:, 0, :2, :3], (4, 1, 3, 4), align_corners=True)
    return f.grid_sample(x, places, padding_mode="border", align_corners=True)


PLACES = torch.tensor([2, 0, 2, 2, 0])
EACH = torch.tensor([[2, 0, 2], [1, 1, 2]])


def reduced(x, reduce, include_self=True):
    return x.index_reduce(1, PLACES, x[:, [0, 1, 2, 1, 0]] + 0.5, reduce, include_self=include_self)


def scattered(x, reduce, include_self=True):
    index = EACH.expand(4, 2, 3)
    return x.scatter_reduce(2, index, x[:, :2, :3] * 2, reduce, include_self=include_self)


def bessel_functions(x):
    """Bessel functions of arguments below 8 and above; their gradients need other orders."""
    return torch.i0(x) + torch.special.i1e(30 * x)


def parts_of_floats(x):
    mantissa, exponent = torch.frexp(4 * x)
    wide = torch.frexp(torch.tensor([0.0, -0.5, 1.0, 1e-310, 1.7e308]).double() + 0 * x[:, :5])
    return mantissa * x + exponent + wide[0][:, 1:2] + wide[1].sum(1, keepdim=True)


def neighbours(x):
    """Differences of adjacent floats in units in the last place, also at powers of two."""
    fixed = torch.where(torch.arange(8) < 4, x.detach(), torch.exp2(x.detach().round()))
    one = torch.tensor([1.0, -1.0, 0.0, torch.inf, -torch.inf, 0.5, 2.0, 1.0]).double()
    return x * (torch.nextafter(fixed, one) - fixed) * 2.0**52


ROWS = {
    "bilinear": sampled(4, 5),
    "bilinear_border": sampled(4, 5, padding="border"),
    "bilinear_reflection": sampled(4, 5, padding="reflection", aligned=True),
    "bicubic": sampled(4, 5, mode="bicubic", padding="reflection"),
    "nearest": sampled(4, 5, mode="nearest", aligned=True),
    "trilinear": sampled(2, 3, 4, padding="border"),
    "at_border": row(at_border, 2, 3, 4),
    "mode": row(lambda x: (x * 2).round().mode(1).values * x[:, 0] + x.mode(1).values, 5, 3),
    "index_amax": row(lambda x: reduced(x, "amax"), 3, 4),
    "index_mean": row(lambda x: reduced(x, "mean", False), 3, 4),
    "scatter_amin": row(lambda x: scattered(x, "amin"), 3, 4),
    "scatter_amax": row(lambda x: scattered(x, "amax", False), 3, 4),
    "scatter_mean": row(lambda x: scattered(x, "mean"), 3, 4),
    "addbmm": row(lambda x: torch.addbmm(x[0], x, x.mT, beta=2, alpha=0.5), 3, 3),
    "pdist": row(lambda x: torch.stack([f.pdist(x[0], p) for p in (1, 2, 3, torch.inf)]), 4, 3),
    "erfinv": row(lambda x: torch.erfinv(x.tanh()) + torch.erfinv(0.1 * x.tanh()), 8),
    "erfcx": row(lambda x: torch.special.erfcx(3 * x) + torch.special.log_ndtr(2 * x), 8),
    **named(bessel_functions, parts_of_floats, neighbours, shape=(8,)),
}


def test_the_grid_of_the_unit_matrix_has_pytorchs_bits():
    """Float32, in which another order of operations would move grid points off their pixels."""
    for aligned in (False, True):
        theta = torch.eye(2, 3).expand(2, 2, 3)
        found = affine_grid(theta, (2, 1, 28, 13), aligned)
        assert torch.equal(found, f.affine_grid(theta, (2, 1, 28, 13), align_corners=aligned))


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(ROWS, tmp_path)
