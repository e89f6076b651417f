"""Invalid batches are refused before a step, naming the sample."""

import numpy as np
import pytest

from csrun.base.errors import CsrunError
from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.data import Dataset
from csrun.executable import AxisSlice, InputSpec, LabelRange, NumberRange
from csrun.runtime.step.source import InProcessSource

INPUTS = (
    InputSpec("features", (4, 3), "float32"),
    InputSpec("labels", (4, 2), "int32", (LabelRange(10, IGNORE_INDEX),)),
)
FEATURES = np.arange(60, dtype=np.float64).reshape(20, 3)
LABELS = np.ones((20, 2), np.int32)


def run(features=FEATURES, labels=LABELS, check_numerics=True, shuffled=False):
    data = Dataset.from_arrays(features, labels)
    data = (data.shuffle(seed=1) if shuffled else data).batch(4)
    source = InProcessSource(data, INPUTS, 0, RunSettings(check_numerics=check_numerics))
    while source.take() is not None:
        source.release()


def changed(array, at, value):
    array = array.copy()
    array[at] = value
    return array


def test_a_label_out_of_range_in_a_sequence():
    with pytest.raises(CsrunError) as caught:
        run(labels=changed(LABELS, (13, 1), 11))
    assert str(caught.value) == (
        "batch 3, row 1 (sample 13), position 1: labels must be in 0..9, got 11: "
        "correct it, or use ignore_index (-100) for labels to skip"
    )
    (note,) = caught.value.__notes__
    assert note.startswith("this process failed in batch 3 after 3 batches at ")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_that_is_not_finite_in_the_models_type(value):
    """1e300 overflows in float32."""
    features = changed(FEATURES, (9, 2), value)
    with pytest.raises(CsrunError, match=r"batch 2, row 1 \(sample 9\): features is not finite"):
        run(features)
    run(features, check_numerics=False)


def test_the_sample_is_that_of_the_source_whatever_the_order():
    with pytest.raises(CsrunError, match=r"row \d \(sample 9\): features is not finite") as caught:
        run(changed(FEATURES, 9, np.nan), shuffled=True)
    assert "the batch has 3 NaN and 0 Inf as float32, in 1 rows" in str(caught.value)


def test_the_rows_that_fill_up_a_last_batch_are_not_looked_at():
    run(FEATURES[:18], LABELS[:18])


@pytest.mark.parametrize("wrong", [-1, 7, 1 << 40])
def test_a_number_that_the_table_does_not_have(wrong):
    tokens = changed(np.ones((8, 5), np.int64), (6, 3), wrong)
    inputs = (InputSpec("features", (4, 5), "int32", numbers=(NumberRange(7),)),)
    source = InProcessSource(Dataset.from_arrays(tokens).batch(4), inputs, 0, RunSettings())
    source.take()
    source.release()
    with pytest.raises(CsrunError) as caught:
        source.take()
    assert str(caught.value) == (
        "batch 1, row 2 (sample 6), position 3: features must be in 0..6 "
        f"(an index into 7 elements), got {wrong}"
    )


def test_only_what_is_looked_up_of_an_array_is_looked_at():
    tokens = changed(np.ones((8, 5), np.int64), (6, 3), 7)
    ranges = NumberRange(2, (AxisSlice(1, 0, 3),)), NumberRange(9)
    inputs = (InputSpec("features", (4, 5), "int32", numbers=ranges),)
    source = InProcessSource(Dataset.from_arrays(tokens).batch(4), inputs, 0, RunSettings())
    for _ in range(2):
        source.take()
        source.release()
    cut = (NumberRange(2, (AxisSlice(1, 1, 4, 2),)),)
    inputs = (InputSpec("features", (4, 5), "int32", numbers=cut),)
    source = InProcessSource(Dataset.from_arrays(tokens).batch(4), inputs, 0, RunSettings())
    source.take()
    source.release()
    with pytest.raises(CsrunError, match=r"position 3: features must be in 0\.\.1 .* got 7"):
        source.take()


@pytest.mark.parametrize(
    ("value", "half"),
    [(65520, FLOAT16), (-65520, FLOAT16), (4292870144, cbfloat16()), (3.3961776e38, BFLOAT16)],
)
def test_a_value_that_overflows_as_it_is_stored(value, half):
    """In float16 NumPy's conversion overflows from 65520 on; CB16's limit is 2^32 - 2^21."""
    value = np.float32(value)
    inputs = (InputSpec("features", (4, 3), "float32", half=half),)

    def take(value):
        data = Dataset.from_arrays(changed(np.ones((8, 3), np.float32), (6, 2), value)).batch(4)
        source = InProcessSource(data, inputs, 0, RunSettings())
        source.take()
        source.release()
        source.take()

    take(np.nextafter(value, np.float32(0)))
    take(np.float32(np.inf))  # what is none already did not overflow
    with pytest.raises(CsrunError) as caught:
        take(value)
    assert str(caught.value).startswith(
        f"batch 1, row 2 (sample 6), position 2: features is {value:.9g}, and the largest number "
        f"of {half.name} is {half.largest:.9g}: scale the data"
    )
