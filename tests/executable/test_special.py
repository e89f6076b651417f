"""Functions that NumPy lacks, against those of the standard library in float64."""

import math

import numpy as np
import pytest

from csrun.executable.special import logistic, normal_cdf

#: Units in the last place, times what exp(-x x / 2) does to the rounding of x x.
LIMITS = {"float32": 1e-6, "float64": 5e-14}


def our_cdf(x):
    cdf, exponential, tail, power = (np.empty_like(x) for _ in range(4))
    normal_cdf(x, cdf, exponential, tail, power, np.empty(x.shape, bool))
    return cdf, exponential


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_normal_distribution_is_precise_in_its_middle_and_in_its_tail(dtype):
    x = np.linspace(-12, 12, 20001).astype(dtype)
    ours, exponential = our_cdf(x)
    theirs = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])
    error = np.abs(ours - theirs) / theirs
    assert error[np.abs(x) < 3].max() < LIMITS[dtype]
    assert error.max() < 20 * LIMITS[dtype]
    np.testing.assert_allclose(
        exponential, np.exp(-(x.astype("d") ** 2) / 2), rtol=1e-4, atol=1e-37
    )


@pytest.mark.parametrize("dtype", LIMITS)
def test_far_out_it_is_0_and_1(dtype):
    cdf, _ = our_cdf(np.array([-1e6, -60.0, 0.0, 60.0, 1e6], dtype))
    np.testing.assert_allclose(cdf, [0, 0, 0.5, 1, 1], rtol=1e-7)


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_logistic_function_is_exact_and_does_not_overflow(dtype):
    x = np.concatenate([np.linspace(-80, 80, 1001), [-1e5, 1e5]]).astype(dtype)
    out = np.empty_like(x)
    logistic(x, out)
    theirs = [1 / (1 + math.exp(-max(value, -700.0))) for value in x.tolist()]
    np.testing.assert_allclose(out, theirs, rtol=10 * LIMITS[dtype], atol=1e-38)
