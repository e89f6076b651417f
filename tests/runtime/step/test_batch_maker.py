"""Batches of a run: indices, memory they are written to, and checks before they are read."""

import numpy as np
import pytest

from csrun.base.errors import CsrunError
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.data import Dataset
from csrun.data.delivery import Delivery, LazyBatch
from csrun.data.input_operators import StageClock
from csrun.data.samples import from_arrays
from csrun.data.structure import NAMES
from csrun.executable import InputSpec, LabelRange
from csrun.runtime.step.batch_maker import BatchMaker, BatchNumbers

INPUTS = (
    InputSpec("features", (4, 3), "float32"),
    InputSpec("labels", (4,), "int32", (LabelRange(10, IGNORE_INDEX),)),
)
FEATURES = np.arange(66, dtype=np.float64).reshape(22, 3)
LABELS = np.arange(22) % 10
ALL = BatchNumbers()


def maker(data: Dataset, numbers: BatchNumbers = ALL) -> BatchMaker:
    return BatchMaker(data, INPUTS, numbers, RunSettings(), "this streamer")


def slot() -> tuple[np.ndarray, ...]:
    return tuple(np.full(spec.shape, 77, spec.dtype) for spec in INPUTS)


def pairs(labels: np.ndarray = LABELS) -> Dataset:
    return Dataset.from_arrays(FEATURES, labels).batch(4)


@pytest.mark.parametrize(
    ("numbers", "made"),
    [
        (BatchNumbers(), [0, 1, 2, 3, 4, 5]),
        (BatchNumbers(1, 2), [1, 3, 5]),
        (BatchNumbers(1, 2, 5), [1, 3]),
        (BatchNumbers(5, 3), [5]),
        (BatchNumbers(6), []),
    ],
)
def test_it_makes_the_batches_of_its_numbers(numbers: BatchNumbers, made: list[int]) -> None:
    batches, (features, _) = maker(pairs(), numbers), slot()
    for number in made:
        assert batches.number == number
        rows = batches.make((features, np.empty(4, np.int32))).rows
        np.testing.assert_array_equal(features[:rows], FEATURES[4 * number :][:4])
    assert batches.make(slot()) is None
    assert np.array_equal(features[2:], features[:2]) == (5 in made or not made)


def test_after_the_filled_up_batch_of_one_pass_a_whole_one_is_whole() -> None:
    """Eleven samples in batches of four: the third has three, the fourth four again."""
    batches = maker(Dataset.from_arrays(FEATURES[:11], LABELS[:11]).batch(4).repeat())
    (features, labels), rows = slot(), []
    for _ in range(4):
        rows.append(batches.make((features, labels)).rows)
        np.testing.assert_array_equal(labels[rows[-1] :], labels[: 4 - rows[-1]])
    assert rows == [4, 4, 3, 4]
    np.testing.assert_array_equal(labels, LABELS[:4])


def test_a_label_that_would_fit_only_when_it_is_cut_off_is_refused() -> None:
    labels = LABELS.copy()
    labels[9] = 2**32 + 3
    batches = maker(pairs(labels))
    batches.make(slot())
    batches.make(slot())
    with pytest.raises(CsrunError, match=r"row 1 \(sample 9\): .* in 0..9, got 4294967299"):
        batches.make(slot())


def test_a_batch_that_does_not_fit_is_not_read() -> None:
    data = Dataset.from_arrays(np.zeros((8, 5)), np.zeros(8, int)).batch(4)
    batches, arrays = maker(data), slot()
    with pytest.raises(CsrunError, match=r"features must have shape \[4, 3\]"):
        batches.make(arrays)
    assert not data.clock.stages
    assert (arrays[0] == 77).all()


def test_a_delivery_writes_into_the_arrays_that_it_is_handed() -> None:
    """In place if types are equal; otherwise converted, with checks as before."""
    source = from_arrays((np.arange(12.0).reshape(6, 2), np.arange(6, dtype=np.int32)), NAMES)
    lazy = Delivery(LazyBatch(source, np.array([4, 1])), list)
    made = Delivery((np.array([[8.0, 9.0], [2.0, 3.0]]), np.array([4, 1], np.int32)), list)
    for delivery in (lazy, made):
        shapes = [(kind.shape, kind.dtype.name) for kind in delivery.kinds]
        assert shapes == [((2, 2), "float64"), ((2,), "int32")]
        outs = np.zeros((2, 2), np.float32), np.zeros(2, np.int32)
        given = delivery.write(outs, StageClock())
        assert outs[0].tolist() == [[8, 9], [2, 3]]
        assert outs[1].tolist() == [4, 1]
        assert [array.dtype.name for array in given] == ["float64", "int32"]
    outs = np.zeros((2, 2)), np.zeros(2, np.int32)
    given = lazy.write(outs, StageClock())
    assert all(array is out for array, out in zip(given, outs, strict=True))
