"""Elementary functions of machine code: errors in ulp, and values at the ends of their ranges."""

from math import erfc, sqrt

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.lane_functions import LaneFunctions

from csrun.compiler.emit.llvm.lane_functions.elementary import Float32
from csrun.executable import machine_code

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of infinities and NaN")

#: The function in float64, the stated bound in ulp, and where it holds.
FUNCTIONS = {
    "exp": (np.exp, 1.0, (-104, 89)),
    "expm1": (np.expm1, 1.5, (-30, 89)),
    "log": (np.log, 1.0, (0, 3e38)),
    "log1p": (np.log1p, 2.5, (-1, 3e38)),
    "tanh": (np.tanh, 2.5, (-30, 30)),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), 2.5, (-88, 30)),
    "sin": (np.sin, 0.51, (-np.inf, np.inf)),
    "cos": (np.cos, 0.51, (-np.inf, np.inf)),
}
PEERS = {
    **{name: getattr(torch, name) for name in FUNCTIONS if name != "logistic"},
    "logistic": torch.sigmoid,
    "normal_cdf": torch.special.ndtr,
}
ENDS = [0.0, -0.0, 1.0, -1.0, 88.72, 88.73, 89.5, 100.0, -87.4, -103.9, -104.1, -150.0]
ENDS += [1e-40, -1e-40, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 0.5, 1e30, -1e30, 2.0**-25]


def functions_of(lanes):
    def call(n):
        return lambda code, *args: getattr(Float32(code, args[0].kind), n)(*args)

    operands = dict.fromkeys(PEERS, ("float32",)) | {"power": ("float32",) * 2}
    return LaneFunctions({n: call(n) for n in operands}, operands, lanes)


@pytest.fixture(scope="module", params=[16, 1])
def functions(request):
    return functions_of(request.param)


def places(least, most):
    """Random numbers of all magnitudes within a range, and many near 0 and 1."""
    random = np.random.default_rng(2)
    bits = random.integers(0, 0x7F800000, 1 << 16, dtype=np.int64).astype(np.int32)
    anywhere = bits.view(np.float32) * random.choice([-1, 1], bits.size)
    near = [random.uniform(max(least, -200), min(most, 200), 1 << 16)]
    near += [np.arange(1 << 14) * np.pi / 2]  # of the sine's zeros
    near += [random.standard_normal(1 << 15), 1 + random.standard_normal(1 << 14) / 100]
    x = np.concatenate([anywhere, *near]).astype(np.float32)
    return x[(x > least) & (x < most)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_is_below_its_bound(functions, name):
    function, bound, span = FUNCTIONS[name]
    x = places(*span)
    assert x.size > 1 << 15
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64))
        nearest = wanted.astype(np.float32)
    found = functions(name, x)
    is_finite = np.isfinite(nearest)
    np.testing.assert_array_equal(found[~is_finite], nearest[~is_finite])
    found, wanted, nearest = found[is_finite], wanted[is_finite], nearest[is_finite]
    ulp = np.spacing(np.abs(nearest)).astype(np.float64)
    assert np.max(np.abs(found - wanted) / ulp) <= bound


@pytest.mark.skipif("+avx512f" not in machine_code.host(), reason="the CPU has no AVX-512")
def test_bits_of_exp_do_not_depend_on_the_instructions(monkeypatch):
    """AVX-512 scales by a power of 2 in one instruction; the bits must be equal."""
    x = np.concatenate([places(-150, 150), np.array(ENDS, np.float32)])
    found = functions_of(16)("exp", x)
    monkeypatch.setattr(machine_code, "host", lambda: "x86-64-v3")
    by_others = functions_of(16)("exp", x)
    np.testing.assert_array_equal(found.view(np.int32), by_others.view(np.int32))


def test_powers(functions):
    """Bases and exponents of all sizes, bases near 1, whole exponents of negative bases."""
    random = np.random.default_rng(3)
    x = places(-np.inf, np.inf)[: 1 << 16]
    base = np.concatenate([x, np.abs(x), 1 + random.standard_normal(x.size) / 1000, -np.abs(x)])
    exponent = [random.permutation(x), random.standard_normal(x.size) * 2]
    exponent += [random.standard_normal(x.size) * 3e4, random.integers(-9, 9, x.size)]
    base, exponent = (np.asarray(a, "f4") for a in (base, np.concatenate(exponent)))
    with np.errstate(all="ignore"):
        wanted = np.power(base.astype(float), exponent.astype(float))
        nearest = wanted.astype("f4")
    found = functions("power", base, exponent)
    is_finite = np.isfinite(nearest)
    assert is_finite.sum() > 1 << 17
    np.testing.assert_array_equal(found[~is_finite], nearest[~is_finite])
    np.testing.assert_array_equal(np.signbit(found)[is_finite], np.signbit(nearest)[is_finite])
    ulp = np.spacing(np.abs(nearest[is_finite])).astype(float)
    assert np.max(np.abs(found[is_finite] - wanted[is_finite]) / ulp) <= 0.51


def test_powers_of_zeros_infinities_and_nan_are_pytorchs(functions):
    ends = np.array([*ENDS, 2, -2, 3, -3, -0.5, 2.0**24 - 1, 2.0**24, 2.0**31], np.float32)
    base, exponent = np.repeat(ends, ends.size), np.tile(ends, ends.size)
    wanted = torch.pow(torch.from_numpy(base), torch.from_numpy(exponent)).numpy()
    found = functions("power", base, exponent)
    np.testing.assert_allclose(found, wanted, rtol=2e-7)
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(wanted)[is_number])


def test_the_normal_cdf_is_as_near_as_atens(functions):
    x = np.random.default_rng(0).uniform(-9, 9, 4000).astype(np.float32)
    wanted = [erfc(-value / sqrt(2)) / 2 for value in x.astype(float)]
    np.testing.assert_allclose(functions("normal_cdf", x), wanted, rtol=0, atol=1.5e-7)


@pytest.mark.parametrize("name", PEERS)
def test_the_ends_of_the_range_are_pytorchs(functions, name):
    """Infinities, NaN, overflow, subnormal numbers and signed zeros."""
    x = np.array(ENDS, np.float32)
    found, wanted = functions(name, x), PEERS[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-7)
    signed = [n for n, value in enumerate(wanted) if value == 0 and found[n] == 0]
    np.testing.assert_array_equal(np.signbit(found[signed]), np.signbit(wanted[signed]))
