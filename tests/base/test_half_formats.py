"""16-bit formats against exact integer arithmetic, PyTorch, and gfloat."""

from fractions import Fraction

import numpy as np
import pytest

from csrun.base import half_formats
from csrun.base.half_formats import BFLOAT16, FLOAT16, HalfFormat, cbfloat16

FORMATS = [FLOAT16, BFLOAT16, cbfloat16(), cbfloat16(24), cbfloat16(40)]
WORDS = np.arange(1 << 16, dtype=np.uint16)


def widened(kind: HalfFormat, words: np.ndarray) -> np.ndarray:
    out = np.empty(words.shape, np.float32)
    kind.widen(words, out)
    return out


def narrowed(kind: HalfFormat, x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.uint16)
    kind.narrow(x, out)
    return out


def exact_value(kind: HalfFormat, word: int) -> Fraction | None:
    """Value of a finite word, by IEEE 754's definition."""
    exponent = (word & 0x7FFF) >> kind.mantissa_bits
    mantissa = word & ((1 << kind.mantissa_bits) - 1)
    if exponent == (1 << kind.exponent_bits) - 1:
        return None
    unit = Fraction(2) ** (max(exponent, 1) - kind.bias - kind.mantissa_bits)
    value = (mantissa + ((1 << kind.mantissa_bits) if exponent else 0)) * unit
    return -value if word >> 15 else value


def exact_word(kind: HalfFormat, number: float) -> int:
    """Word of a finite number: the nearest magnitude by search over values, ties to even words."""
    magnitude = abs(Fraction(number))
    low, high = 0, kind.infinity  # the overflow threshold: infinity as the next value of the row
    while high - low > 1:
        middle = (low + high) // 2
        value = exact_value(kind, middle)
        low, high = (middle, high) if value is not None and value <= magnitude else (low, middle)
    below = exact_value(kind, low)
    step = Fraction(2) ** (max(low >> kind.mantissa_bits, 1) - kind.bias - kind.mantissa_bits)
    assert below is not None
    rest = magnitude - below
    is_up = rest * 2 > step or (rest * 2 == step and low % 2 == 1)
    sign = np.signbit(np.float32(number))
    return (low + is_up) | (int(sign) << 15)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_all_words_there_and_back(kind: HalfFormat) -> None:
    values = widened(kind, WORDS)
    back = narrowed(kind, values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(back[numbers], WORDS[numbers])
    # A NaN stays one, and becomes quiet.
    assert np.isnan(widened(kind, back[~numbers])).all()
    assert (~numbers).sum() == 2 * ((1 << kind.mantissa_bits) - 1)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_values_of_words_are_those_of_the_definition(kind: HalfFormat) -> None:
    values = widened(kind, WORDS)
    for word in range(0, 1 << 16, 7):
        exact = exact_value(kind, word)
        if exact is not None:
            assert Fraction(float(values[word])) == exact
    assert values[kind.infinity] == np.inf
    assert values[kind.infinity | 0x8000] == -np.inf
    assert np.signbit(values[0x8000])


def samples(kind: HalfFormat) -> np.ndarray:
    """Every exponent of float32 with random mantissas, ties, and their neighbours."""
    random = np.random.default_rng(7)
    exponents = np.arange(255, dtype=np.uint32)[:, None] << 23
    mantissas = random.integers(0, 1 << 23, (255, 8), dtype=np.uint32)
    ties = (mantissas[:, :3] >> kind.dropped_bits << kind.dropped_bits) | np.uint32(
        1 << (kind.dropped_bits - 1)
    )
    words = np.concatenate([exponents + m for m in (mantissas, ties, ties - 1, ties + 1)], axis=1)
    signs = random.integers(0, 2, words.shape, dtype=np.uint32) << 31
    edges = np.array(
        [0.0, -0.0, kind.smallest, kind.smallest / 2, kind.smallest * 1.5, kind.largest]
    )
    return np.concatenate([(words | signs).ravel().view(np.float32), edges.astype(np.float32)])


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_rounds_to_nearest_even_as_exact_arithmetic_does(kind: HalfFormat) -> None:
    numbers = samples(kind)
    expected = [exact_word(kind, float(number)) for number in numbers]
    found = narrowed(kind, numbers)
    np.testing.assert_array_equal(found, np.array(expected, np.uint16))
    rounded = np.empty_like(numbers)
    kind.round(numbers, rounded)
    np.testing.assert_array_equal(rounded.view(np.uint32), widened(kind, found).view(np.uint32))


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_a_rounded_nan_is_quiet_and_keeps_the_upper_payload(kind: HalfFormat) -> None:
    """As in machine code (`half.py` of the lane functions), among numbers that are unchanged."""
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC12345, 0x7FA00000, 0x3F800000], np.uint32)
    rounded = np.empty(bits.shape, np.float32)
    kind.round(bits.view(np.float32), rounded)
    kept = -(1 << kind.dropped_bits) & 0xFFFFFFFF
    expected = [(int(nan) | 0x00400000) & kept for nan in bits[:-1]]
    assert rounded.view(np.uint32).tolist() == [*expected, 0x3F800000]
    np.testing.assert_array_equal(widened(kind, narrowed(kind, rounded)), rounded)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
@pytest.mark.parametrize("block", [1, 37, 1 << 18])
def test_arrays_of_any_layout_in_blocks_of_any_length(kind, block, monkeypatch) -> None:
    monkeypatch.setattr(half_formats, "_BLOCK", block)
    every = samples(kind)
    numbers = np.resize(every[:: len(every) // 108], (12, 9))  # from all exponents
    words = np.array([exact_word(kind, x) for x in numbers.ravel().tolist()], np.uint16)
    words = words.reshape(numbers.shape)
    exact = (exact_value(kind, word) for word in words.ravel().tolist())
    magnitudes = np.array([np.inf if x is None else abs(float(x)) for x in exact], np.float32)
    values = np.copysign(magnitudes.reshape(numbers.shape), numbers)

    def layouts(array, dtype):
        """The array by rows, transposed, with every second column, and as a scalar."""
        wide = np.zeros((12, 18), dtype)[:, ::2]
        wide[...] = array
        return array.astype(dtype), np.asfortranarray(array, dtype), wide

    conversions = [
        (kind.narrow, numbers, "f", words, np.uint16),
        (kind.round, numbers, "f", values, np.float32),
        (kind.words, values, "f", words, np.uint16),
        (kind.widen, words, np.uint16, values, np.float32),
    ]
    for convert, given, dtype, expected, to in conversions:
        for x in layouts(given, dtype):
            for out in layouts(np.ones_like(expected), to):
                convert(x, out)
                assert out.tobytes() == expected.tobytes()
    for x in layouts(numbers, "f"):
        kind.round(x, x)
        assert x.tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=str)
def test_rounds_as_pytorch_does(kind: HalfFormat) -> None:
    torch = pytest.importorskip("torch")
    numbers = samples(kind)
    dtype = getattr(torch, kind.name)
    half = torch.from_numpy(numbers).to(dtype)
    np.testing.assert_array_equal(narrowed(kind, numbers), half.view(torch.uint16).numpy())
    every = torch.from_numpy(WORDS.view(np.int16)).view(dtype).float().numpy()
    np.testing.assert_array_equal(widened(kind, WORDS), every)


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16, cbfloat16()], ids=str)
def test_rounds_as_gfloat_does(kind: HalfFormat) -> None:
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    info = formats.format_info_binary16
    if kind is BFLOAT16:
        info = formats.format_info_bfloat16
    elif kind is not FLOAT16:
        info = gfloat.FormatInfo(
            name="1-6-9",
            k=16,
            precision=kind.mantissa_bits + 1,
            bias=kind.bias,
            has_nz=True,
            domain=gfloat.Domain.Extended,
            num_high_nans=(1 << kind.mantissa_bits) - 1,
            has_subnormals=True,
            is_signed=True,
            is_twos_complement=False,
        )
    numbers = samples(kind)[::11]
    for number, word in zip(numbers.tolist(), narrowed(kind, numbers).tolist(), strict=True):
        assert gfloat.encode_float(info, gfloat.round_float(info, number)) == word


def test_published_limits() -> None:
    assert (FLOAT16.largest, FLOAT16.smallest_normal) == (65504.0, 2.0**-14)
    cb16 = cbfloat16()
    assert cb16.largest == 4290772992
    assert (cb16.smallest_normal, cb16.smallest, cb16.epsilon) == (2.0**-30, 2.0**-39, 2.0**-9)
    below, at = np.nextafter(np.float32(4292870144), np.float32(0)), np.float32(4292870144)
    assert cb16.nearest(float(below)) == cb16.largest
    assert cb16.nearest(float(at)) == np.inf
