"""Philox against its authors' vectors; masks and numbers drawn in parts against the reference."""

import numpy as np
import pytest

from csrun.cirh.ops.base import attribute
from csrun.cirh.reference import masks as reference
from csrun.cirh.reference.masks import MaskCounter
from csrun.executable import StepState
from csrun.kernels.random import (
    FixedUniformDraw,
    MaskDraw,
    UniformDraw,
    blocks_of,
    philox,
    round_keys,
    threshold_of,
)

SEED = 0x299F31D0A4093822  # the third vector's key
#: kat_vectors of the Random123 library 1.09, lines "philox4x32 10": counter, key, random words.
VECTORS = [
    ("00000000 00000000 00000000 00000000", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", SEED, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "seed", "expected"), VECTORS)
def test_published_vectors(counter, seed, expected):
    a, b, c, d = words(counter)
    even = np.array([a, c], np.uint64).reshape(2, 1, 1)
    odd = np.array([b, d], np.uint64).reshape(2, 1, 1)
    philox(even, odd, np.empty_like(even), round_keys(seed))
    found = tuple(int(part[i, 0, 0]) for i in (0, 1) for part in (even, odd))
    assert found == words(expected)


@pytest.mark.parametrize(("counter", "seed", "expected"), VECTORS)
def test_the_reference_gives_the_published_vectors_too(counter, seed, expected):
    assert reference.philox(words(counter), (seed & 0xFFFFFFFF, seed >> 32)) == words(expected)


def mask_of(rows, columns, rate=0.3, stream=2, seed=SEED, step=5, first=0):
    mask = np.empty((rows, columns), bool)
    scratch = np.empty((3, 2, rows, blocks_of(columns)), np.uint64)
    draw = MaskDraw(mask, scratch, threshold_of(rate), stream, round_keys(seed))
    draw(StepState(step, first, first + rows))
    return mask


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 8, 9, 12, 13, 40])
def test_masks_are_the_references(columns):
    properties = {"rate": attribute(0.3), "stream": attribute(2)}
    expected = reference.dropout_mask(properties, (6, columns), MaskCounter(SEED, 5, 100))
    np.testing.assert_array_equal(mask_of(6, columns, first=100), expected)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6, 12])
def test_a_split_batch_draws_the_same_masks(parts):
    size = 12 // parts
    drawn = [mask_of(size, 21, first=96 + size * part) for part in range(parts)]
    np.testing.assert_array_equal(np.concatenate(drawn), mask_of(12, 21, first=96))


def test_seed_step_stream_and_sample_each_change_the_mask():
    masks = [mask_of(64, 64)]
    masks += [mask_of(64, 64, **{key: 9}) for key in ("seed", "step", "stream", "first")]
    for number, mask in enumerate(masks):
        for other in masks[number + 1 :]:
            assert 0.3 < (mask == other).mean() < 0.8  # two independent masks agree on 58%


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate(rate):
    zeros = 1 - mask_of(1000, 1000, rate).mean()
    deviation = (rate * (1 - rate) / 1e6) ** 0.5
    assert abs(zeros - rate) <= 5 * deviation + 2**-17


def numbers_of(rows, columns, stream=2, seed=SEED, step=5, first=0, kind=UniformDraw):
    numbers = np.empty((rows, columns), np.float32)
    scratch = np.empty((3, 2, rows, -(-columns // 4)), np.uint64)
    kind(numbers, scratch, stream, round_keys(seed))(StepState(step, first, first + rows))
    return numbers


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8, 21])
def test_uniform_numbers_are_the_references(columns):
    properties = {"stream": attribute(2)}
    expected = reference.uniform(properties, (6, columns), MaskCounter(SEED, 5, 100))
    np.testing.assert_array_equal(numbers_of(6, columns, first=100), expected)
    fixed = reference.uniform(
        {**properties, "rows": attribute(0)}, (columns,), MaskCounter(SEED, 5)
    )
    np.testing.assert_array_equal(numbers_of(1, columns, kind=FixedUniformDraw)[0], fixed)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_split_batch_draws_the_same_numbers(parts):
    size = 12 // parts
    drawn = [numbers_of(size, 21, first=96 + size * part) for part in range(parts)]
    np.testing.assert_array_equal(np.concatenate(drawn), numbers_of(12, 21, first=96))


def test_seed_step_stream_and_sample_each_change_the_numbers():
    drawn = [numbers_of(64, 64)]
    drawn += [numbers_of(64, 64, **{key: 9}) for key in ("seed", "step", "stream", "first")]
    for number, one in enumerate(drawn):
        for other in drawn[number + 1 :]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1


def test_numbers_are_uniform():
    """Chi-squared test over 256 intervals; 0 and 1 are excluded.

    Source: Pearson's chi-squared, 355 at 255 degrees of freedom, which a hundred-thousandth exceeds
    """
    numbers = numbers_of(1000, 1000).ravel()
    assert 0 < numbers.min() < 1e-5
    assert 1 - 1e-5 < numbers.max() < 1
    counts = np.bincount((numbers * 256).astype(int), minlength=256)
    assert ((counts - numbers.size / 256) ** 2 / (numbers.size / 256)).sum() < 355
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.005
