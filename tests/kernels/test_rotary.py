"""Rotary position embedding on preallocated arrays, against its formula."""

import numpy as np
import pytest

from csrun.kernels import rotary

TOLERANCES = {"float32": 1e-6, "float64": 1e-14}


def normal(*shape, dtype="float64"):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def turned(x, pairs, size, base, axis, is_inverse=False):
    """Rotate each pair by its rotation matrix."""
    out = x.astype("d")
    for place in np.ndindex(x.shape[:-1]):
        for i, (a, b) in enumerate(pairs):
            angle = place[axis] * base ** (-2 * i / size) * (-1 if is_inverse else 1)
            matrix = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            out[place][[a, b]] = matrix @ x[place].astype("d")[[a, b]]
    return out


def ours(x, out, size, base, axis, interleaved, is_inverse=False):
    axes = x.ndim - 2 - axis
    rotation_factors = rotary.rotation_factors(
        x.shape[axis], size, base, is_inverse, str(x.dtype), axes
    )
    if interleaved:
        rotary.rotate_pairs(x, out, rotation_factors)
    else:
        outer = x.shape[1:-1] if axis else x.shape[:-1]
        part = np.empty((*outer, size // 2), x.dtype)
        rotary.rotate_halves(x, out, *rotary.cosines_and_sines(rotation_factors), part)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("is_inverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "axis"),
    [((2, 3, 5, 7), 4, 1), ((2, 3, 5, 6), 6, 2), ((5, 2), 2, 0), ((3, 0, 2, 4), 4, 1)],
)
def test_pairs_turn_by_their_position(shape, size, axis, is_inverse, dtype):
    x = normal(*shape, dtype=dtype)
    neighbours = [(i, i + 1) for i in range(0, size, 2)]
    halves = [(i, i + size // 2) for i in range(size // 2)]
    for interleaved, pairs in ((True, neighbours), (False, halves)):
        out = np.full_like(x, np.nan)
        ours(x, out, size, 100.0, axis, interleaved, is_inverse)
        expected = turned(x, pairs, size, 100.0, axis, is_inverse)
        np.testing.assert_allclose(out, expected, rtol=0, atol=5 * TOLERANCES[dtype])


@pytest.mark.parametrize("interleaved", [True, False])
def test_operands_may_be_views(interleaved):
    x = normal(2, 3, 4, 5).transpose(0, 2, 1, 3)[:, ::2]
    out, dense = np.empty((2, 2, 2, 3, 5))[:, :, 0], np.empty((2, 2, 3, 5))
    ours(x, out, 4, 10.0, 1, interleaved)
    ours(x.copy(), dense, 4, 10.0, 1, interleaved)
    np.testing.assert_array_equal(out, dense)
