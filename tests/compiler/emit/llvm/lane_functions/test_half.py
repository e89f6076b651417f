"""Conversions of 16-bit formats in machine code: the bits of the NumPy form, for all words."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.lane_functions import LaneFunctions

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.compiler.emit.llvm.lane_functions.half import CONVERSIONS

FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16, "cb16": cbfloat16(), "cb16_40": cbfloat16(40)}
OPERANDS = {
    "round_half": "float32",
    "narrow_half": "float32",
    "half_words": "float32",
    "widen_half": "uint16",
}
WORDS = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module", params=[16, 1])
def functions(request):
    made = {
        f"{name}_{kind}": lambda code, x, make=make, half=half: make(code, half, x)
        for name, make in CONVERSIONS.items()
        for kind, half in FORMATS.items()
    }
    operands = {f"{name}_{kind}": (dtype,) for name, dtype in OPERANDS.items() for kind in FORMATS}
    return LaneFunctions(made, operands, request.param)


def numbers(half):
    """Floats of every exponent, including ties between two numbers of the 16-bit format."""
    random = np.random.default_rng(5)
    bits = np.arange(256, dtype=np.uint32)[:, None] << 23 | random.integers(0, 1 << 23, (256, 200))
    tie = np.uint32(1 << (half.dropped_bits - 1))
    ties = bits >> half.dropped_bits << half.dropped_bits | tie
    found = np.concatenate([bits, ties, ties - 1, ties + 1]).astype(np.uint32).ravel()
    return (found | random.integers(0, 2, found.size, dtype=np.uint32) << 31).view(np.float32)


@pytest.mark.parametrize("kind", FORMATS)
def test_all_words_are_widened_alike(functions, kind):
    expected = np.empty(WORDS.size, np.float32)
    FORMATS[kind].widen(WORDS, expected)
    found = functions(f"widen_half_{kind}", WORDS)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_are_narrowed_and_rounded_alike(functions, kind):
    half, x = FORMATS[kind], numbers(FORMATS[kind])
    words, rounded = np.empty(x.size, np.uint16), np.empty(x.size, np.float32)
    half.narrow(x, words)
    half.round(x, rounded)
    is_number = ~np.isnan(x)
    found = functions(f"narrow_half_{kind}", x)
    np.testing.assert_array_equal(found, words)
    found = functions(f"round_half_{kind}", x)
    np.testing.assert_array_equal(found[is_number], rounded[is_number])
    assert np.isnan(found[~is_number]).all()
    # What is rounded keeps its number as words of it.
    for numbers_of_format in (rounded, found):
        kept, of_code = np.empty_like(words), functions(f"half_words_{kind}", numbers_of_format)
        half.words(numbers_of_format, kept)
        np.testing.assert_array_equal(kept[is_number], words[is_number])
        np.testing.assert_array_equal(of_code, kept)
        half.widen(kept, rounded)
        assert np.isnan(rounded[~is_number]).all()
