"""Products of lanes with a number, against exact products that are rounded once."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.lane_functions import LaneFunctions

from csrun.compiler.emit.llvm.lane_functions.subnormals import scale_lanes

UNDERFLOW = 0x10  # FE_UNDERFLOW of fenv.h on x86-64
NUMBERS = [0.9, 0.01, -0.3, 1.0, 0.5, 3.0, 1e-9, 1e-35, 1e-44, 0.0, -0.0, 1e30, np.inf, np.nan]
# Units of 2**-149, and numbers beside 2**-126 and 2**-96.
EDGES = [0, 1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x0F7FFFFF, 0x0F800000]


@pytest.fixture(scope="module")
def scale():
    functions = LaneFunctions({"scale": scale_lanes}, {"scale": ("float32", "float32")})
    return lambda values, number: functions("scale", values, np.full_like(values, number))


def mixed_values():
    """Numbers of all exponents, many of them small, with both signs."""
    random = np.random.default_rng(7)
    small = random.integers(0, 0x18000000, 4096)
    bits = np.concatenate([EDGES, small, random.integers(0, 1 << 31, 1024)])
    signs = random.integers(0, 2, len(bits)) << 31
    return random.permutation((bits | signs).astype(np.uint32)).view(np.float32)


@pytest.mark.parametrize("number", NUMBERS)
def test_products_are_rounded_once(scale, number):
    values, number = mixed_values(), np.float32(number)
    with np.errstate(all="ignore"):
        exact = values.astype(np.float64) * np.float64(number)  # of 48 bits
        wanted = exact.astype(np.float32)
    found = scale(values, number)
    np.testing.assert_array_equal(found, wanted)
    are_numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[are_numbers], np.signbit(wanted)[are_numbers])


def test_the_cpu_meets_no_subnormal_number(scale):
    libm = ctypes.CDLL("libm.so.6")
    values = np.float32([3e-40, -2e-38, 1e-37, 1e-6, 1.0, 0.0] * 16)  # 1e-6 2**149 overflows
    scale(values, 0.01)
    libm.feclearexcept(UNDERFLOW)
    found = scale(values, 0.01)
    assert not libm.fetestexcept(UNDERFLOW)
    assert 0 < abs(found[0]) < np.finfo(np.float32).smallest_normal
