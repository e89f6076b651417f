"""Overflows among a program's values, and files of single steps."""

import numpy as np
import pytest

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.half_ranges import range_counts
from csrun.executable import MeasuredSteps, RecordedValue, StepState
from csrun.executable.measured_values import (
    Overflow,
    ValueMeasurer,
    measured_values,
    overflow_of,
    remove_measured,
)

HUGE = [1.0, 65504.0]
CASES = [
    (HUGE, None),
    ([1.0, np.inf], Overflow.SURE),
    ([np.nan, 1.0], Overflow.SURE),
    ([1.0, -np.inf], Overflow.POSSIBLE),
    ([-np.inf, np.nan], Overflow.SURE),
    ([], None),
]


@pytest.mark.parametrize(("numbers", "expected"), CASES)
def test_overflows_of_words_and_of_float32(numbers, expected):
    values = np.array(numbers, np.float16)
    assert overflow_of(values.astype(np.float32), FLOAT16) is expected
    assert overflow_of(values.view(np.uint16), FLOAT16) is expected


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16, cbfloat16()])
def test_scalars(half):
    assert overflow_of(np.array(half.infinity, np.uint16), half) is Overflow.SURE
    counts = range_counts(np.array(1, np.uint16), half)
    assert (counts.count, counts.subnormals) == (1, 1)


def test_integers_do_not_overflow():
    assert overflow_of(np.array([2**31 - 1], np.int32), FLOAT16) is None


def test_files_of_steps(tmp_path):
    """Files of steps marked as due remain until they are removed; of others only the newest."""
    values = RecordedValue("hidden/relu", "hidden", "relu"), RecordedValue("loss", "model", "loss")
    folder = tmp_path / "ranges"
    measurer = ValueMeasurer(folder, MeasuredSteps(2, values), FLOAT16)
    words = np.array([0.0, 2.0**-24, 4.0, np.inf], np.float16).view(np.uint16)
    for index in range(5):
        for first_sample in (0, 4):
            step = StepState(index, first_sample)
            measurer(step, 0, words)
            measurer(step, 1, np.array([1.0]))
    kept = {int(path.stem.split("-")[0]) for path in folder.iterdir()}
    assert kept == {2, 4, 5}
    first, second = measured_values(folder, 4)
    assert (first.number, first.overflow) == (0, Overflow.SURE)
    both = first.counts + second.counts
    assert (both.count, both.zeros, both.subnormals, both.overflows) == (8, 2, 2, 2)
    assert both.powers == {-24: 2, 2: 2}
    assert [each.counts for each in measured_values(folder, 5)] == [None, None]
    remove_measured(folder, 4)
    assert {path.name for path in folder.iterdir()} == {"5-0-0.ranges", "5-0-4.ranges"}
