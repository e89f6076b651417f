"""Softmax and log-softmax of values with small and large differences, against PyTorch."""

import numpy as np
import pytest

from csrun.kernels import softmax

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

ROWS, TILE = 12, 5
INF = float("inf")


def of(function, x):
    """Apply a function of csrun.kernels.softmax in tiles of a few rows."""
    size, behind = x.shape[1:]
    out = np.empty_like(x)
    tile, numbers = np.empty((TILE, size, behind), x.dtype), np.empty((TILE, behind), x.dtype)
    getattr(softmax, function)(x, out, tile, numbers, np.ones(size, x.dtype))
    return out


def values(kind, size, behind):
    x = np.random.default_rng(3).standard_normal((ROWS, size, behind))
    match kind:
        case "far apart":
            x *= 1000
        case "rows far apart":  # within a tile: powers of the small ones are none
            x += np.linspace(-200, 50, ROWS)[:, None, None]
        case "overflowing":  # within a tile: from powers that add up to those that overflow
            x += np.linspace(50, 95, ROWS)[:, None, None]
        case "all small":
            x -= 1e4
        case "masked":
            x[:, 1:] = -INF
        case "sure":
            x[:, 0] += 18
        case "undefined":
            x[4, 0], x[5], x[6, 0] = np.nan, -INF, INF
    return x


KINDS = (
    "near",
    "far apart",
    "rows far apart",
    "overflowing",
    "all small",
    "masked",
    "sure",
    "undefined",
)


def check(ours, expected, tolerance):
    """Assert equal NaN and infinities, and other values within the tolerance."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(ours[~finite], expected[~finite])
    assert np.all(np.abs(ours - expected)[finite] <= tolerance[finite])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "behind"), [(3, 1), (128, 1), (4, 6)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_are_pytorchs_to_a_few_roundings(kind, size, behind, dtype):
    x = values(kind, size, behind).astype(dtype)
    wide = torch.from_numpy(x).double()
    rounding = 8 * np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        powers, logarithms = of("softmax", x), of("log_softmax", x)
        of_power = torch.softmax(wide, 1).numpy()
        of_logarithm = torch.log_softmax(wide, 1).numpy()
        depth = 1 + np.nan_to_num(np.abs(of_logarithm), posinf=0)
        check(powers, of_power, rounding * depth * of_power + np.finfo(dtype).tiny)
        check(logarithms, of_logarithm, rounding * depth)


def test_of_no_values_there_is_nothing():
    for shape in ((0, 3, 1), (3, 0, 1)):
        assert of("softmax", np.empty(shape)).shape == shape
