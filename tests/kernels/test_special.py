"""Special functions that NumPy lacks, against the standard library in float64."""

import math

import numpy as np
import pytest

from csrun.kernels.special import logistic, normal_cdf

#: What 1 / (1 + exp(-x)) may lose: units in the last place, times what exp does to x's rounding.
LIMITS = {"float32": 1e-6, "float64": 5e-14}
CDF_ERRORS = {"float32": 1.5e-7, "float64": 2e-15}


def our_cdf(x):
    cdf = np.empty_like(x)
    normal_cdf(x, cdf, cdf, np.empty_like(x))
    return cdf


@pytest.mark.parametrize("dtype", CDF_ERRORS)
def test_the_normal_distribution_is_as_precise_as_it_says(dtype):
    x = np.linspace(-12, 12, 200001).astype(dtype)
    theirs = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])
    assert np.abs(our_cdf(x) - theirs).max() < CDF_ERRORS[dtype]


@pytest.mark.parametrize("dtype", CDF_ERRORS)
def test_far_out_it_is_0_and_1(dtype):
    far = np.array([9.0, 60.0, 1e6, 1e18, np.inf], dtype)
    with np.errstate(over="ignore"):
        assert our_cdf(far).tolist() == pytest.approx([1] * 5, rel=CDF_ERRORS[dtype], abs=0)
        assert our_cdf(-far).tolist() == pytest.approx([0] * 5, rel=0, abs=1e-9)
    assert our_cdf(np.zeros(1, dtype)) == pytest.approx(0.5, rel=CDF_ERRORS[dtype])
    assert np.isnan(our_cdf(np.array([np.nan], dtype))).all()


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_logistic_function_is_exact_and_does_not_overflow(dtype):
    x = np.concatenate([np.linspace(-80, 80, 1001), [-1e5, 1e5]]).astype(dtype)
    out = np.empty_like(x)
    logistic(x, out)
    theirs = [1 / (1 + math.exp(-max(value, -700.0))) for value in x.tolist()]
    np.testing.assert_allclose(out, theirs, rtol=10 * LIMITS[dtype], atol=1e-38)
