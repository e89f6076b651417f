"""Products of bfloat16 pairs, against the definition of each instruction in NumPy."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.matrix_products import INSTRUCTIONS, multiply, plan_of

from csrun.base.half_formats import BFLOAT16
from csrun.executable.bfloat16 import TILES
from csrun.executable.products import AMX_BF16, AVX512, AVX512_BF16, BLOCK_K

SMALLEST_NORMAL = 2.0**-126


def numbers(seed, *shape, spread=1.0):
    """Bfloat16 numbers with varying exponents."""
    random = np.random.default_rng(seed)
    scale = np.exp2(random.normal(0, spread, shape))
    found = (random.standard_normal(shape) * scale).astype(np.float32)
    BFLOAT16.round(found, found)
    return found


def words_of(x):
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def flushed(x):
    """Values with float32 subnormal numbers replaced by zeros of the same sign."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(0, x), x)


def multiply_add(x, y, total):
    """x y + total in float32, rounded once to nearest even; subnormal numbers are zeros.

    The sum of float64 is rounded to odd, by its error, so that the second rounding is right.
    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS; Boldo and
    Melquiond 2008, Emulation of FMA and correctly rounded sums
    """
    x, y, total = (flushed(each.astype(np.float64)) for each in (x, y, total))
    product = x * y
    found = product + total
    other = found - product
    error = (product - (found - other)) + (total - other)
    bits = found.view(np.int64)
    is_inexact = (error != 0) & (bits & 1 == 0)
    bits += np.where(is_inexact, np.where((error > 0) == (found > 0), 1, -1), 0)
    return flushed(found.astype(np.float32))


def sums_of_pairs(a, b):
    """Return A B: per block of k the first numbers of pairs, then the second; then block sums."""
    out = None
    for start in range(0, a.shape[1], BLOCK_K):
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for k in range(start, min(start + BLOCK_K, a.shape[1])):
            total = multiply_add(a[:, k, None], b[None, k], total)
        out = total if out is None else out + total
    return out


def sums_of_amx(a, b, c=None):
    """Return A B + C: per 32 numbers of k, sums of even and of odd positions, each from 0.

    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS
    """
    zero = np.zeros((len(a), b.shape[1]), np.float32)
    out = zero if c is None else flushed(c)
    for start in range(0, a.shape[1], 32):
        sums = [zero, zero]
        for k in range(start, min(start + 32, a.shape[1])):
            sums[k % 2] = multiply_add(a[:, k, None], b[None, k], sums[k % 2])
        out = flushed(out + flushed(sums[0] + sums[1]))
    return out


DEFINITIONS = {"avx512_bf16": sums_of_pairs, "amx_bf16": sums_of_amx}


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("spread", [1.0, 12.0])
@pytest.mark.parametrize("size", [(13, 33, 1), (5, 40, 64), (37, 17, 2 * BLOCK_K + 7)], ids=str)
def test_sums_have_the_bits_of_the_definition(instructions, size, spread):
    m, n, k = size
    a, b = numbers(1, m, k, spread=spread), numbers(2, k, n, spread=spread)
    found = np.empty((m, n), np.float32)
    multiply(a, b, found, TILES[instructions])
    np.testing.assert_array_equal(found, DEFINITIONS[instructions](a, b), strict=True)


@pytest.mark.parametrize("instructions", INSTRUCTIONS[1:])
@pytest.mark.parametrize("size", [(64, 32, 70), (33, 49, 31), (2, 3, 600)], ids=str)
def test_amx_continues_the_sums_of_the_matrix(instructions, size):
    m, n, k = size
    a, b, found = numbers(7, m, k), numbers(8, k, n), numbers(9, m, n, spread=8)
    found[0, 0] = np.float32(2.0**-130)
    wanted = sums_of_amx(a, b, found)
    multiply(a, b, found, TILES[instructions], adds=True)
    np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_subnormal_operands_and_sums_are_zeros(instructions):
    a, b = numbers(3, 12, 30, spread=4) * np.float32(2.0**-60), numbers(4, 30, 40, spread=4)
    b *= np.float32(2.0**-64)
    a[2, :9] = np.float32(2.0**-128)  # of bfloat16
    found, in_float32 = np.empty((2, 12, 40), np.float32)
    multiply(a, b, found, TILES[instructions])
    multiply(a, b, in_float32, AVX512)
    wanted = DEFINITIONS[instructions](a, b)
    assert 0 < np.count_nonzero(wanted == 0) < wanted.size
    np.testing.assert_array_equal(found, wanted, strict=True)
    assert np.count_nonzero(in_float32 != found)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 17, 4), (50, 50, 129), (25, 31, BLOCK_K + 1)])
def test_words_give_the_bits_of_their_numbers(instructions, size, is_transposed):
    (m, n, k), tile = size, TILES[instructions]
    a, b = numbers(5, m, k), numbers(6, k, n)
    words = words_of(b)
    if is_transposed:
        words = np.ascontiguousarray(words.T).T
    found, wanted = np.empty((2, m, n), np.float32)
    multiply(a, words, found, tile, half=BFLOAT16)
    multiply(a, b, wanted, tile)
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_pairs_take_half_of_the_memory():
    a, b, out = (np.zeros(shape, np.float32) for shape in ((64, 101), (101, 96), (64, 96)))
    whole, pairs, amx = (
        plan_of(a, b, out, False, 0, tile, threads=1) for tile in (AVX512, AVX512_BF16, AMX_BF16)
    )
    assert [step.function for step in pairs.steps] == ["pairs.pack", "pairs.multiply"]
    assert [step.function for step in amx.steps] == ["amx.pack", "amx.multiply"]
    assert whole.packed_bytes == 4 * 96 * 101
    assert pairs.packed_bytes == 4 * 96 * 51  # a pair for the last number, too
    assert amx.packed_bytes == 4 * 96 * 64  # of k a multiple of 32
