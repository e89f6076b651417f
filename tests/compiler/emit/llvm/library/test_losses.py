"""Machine code of the final sum of a loss, against NumPy's sum and its definition."""

from itertools import product

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array

from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.kernels.outputs import CopyOut, LossOfMean
from csrun.compiler.kernels.softmax_cross_entropy import LossOperands, LossSum

CLASSES, IGNORED = 7, 3


def loss_sum(rows, count=None, padding=None, is_checked=True, dtype="int64", ignored=IGNORED):
    """Kernel that sums these rows; the mean divides by `count` if it is given."""
    labels = array("labels", rows, dtype=dtype)
    logits = array("logits", rows, CLASSES)
    parts = LossOperands(logits, labels, ignored, 0.0, padding, is_checked, "layer", "stem")
    mean = None if count is None else array("mean")
    return LossSum("layer", parts, LOSS, mean, count or "1")


def values_of(rows, low=0):
    random = np.random.default_rng(rows)
    losses = random.standard_normal((rows, 1)).astype("float32") * 100
    return {"stem/row_losses": losses, "labels": random.integers(low, CLASSES, rows)}


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 128, 129, 1000, 4099])
def test_the_sum_has_the_bits_of_numpy(rows):
    values = values_of(rows)
    found = LibraryCase(loss_sum(rows), values).in_all_ways()
    ignored = values["labels"] == IGNORED
    counted = np.where(ignored, np.float32(0), values["stem/row_losses"][:, 0])
    np.testing.assert_array_equal(found["stem/ignored"], ignored)
    np.testing.assert_array_equal(found["loss"], [np.add.reduce(counted)])


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("valid", [0, 3, 40])
def test_rows_of_padding_do_not_count(rows, padding, valid):
    values = values_of(rows)
    kernel = loss_sum(rows, "step.counts[0]", padding, dtype="int32")
    found = LibraryCase(kernel, values).run(valid * padding, 4.0)
    ignored = (values["labels"] == IGNORED) | (np.arange(rows) >= valid * padding)
    counted = np.where(ignored, np.float32(0), values["stem/row_losses"][:, 0])
    np.testing.assert_array_equal(found["stem/ignored"], ignored)
    np.testing.assert_array_equal(found["loss"], [np.add.reduce(counted)])
    np.testing.assert_array_equal(found["mean"], np.float32(np.float64(np.add.reduce(counted)) / 4))


def test_a_count_may_be_an_array():
    values = values_of(20) | {"count": np.float32(6)}
    found = LibraryCase(loss_sum(20, array("count")), values).run()
    np.testing.assert_array_equal(found["mean"], np.float32(found["loss"][0] / 6))


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_makes_the_loss_nan_unless_it_is_ignored(label):
    values = values_of(20)
    values["labels"][4] = label
    for is_checked, ignored in product((False, True), (IGNORED, label)):
        kernel = loss_sum(20, is_checked=is_checked, ignored=ignored)
        loss = LibraryCase(kernel, values).run()["loss"][0]
        assert np.isnan(loss) == (not is_checked and ignored != label)


def test_other_types_are_left_to_numpy():
    assert library_code(loss_sum(4, dtype="uint8"), "kernel") is None
    assert library_code(loss_sum(4, dtype="int32", ignored=1 << 40), "kernel") is None


def test_the_loss_of_a_mean():
    for count in (None, 1):
        kernel = LossOfMean("layer", array("x"), LOSS, count)
        found = LibraryCase(kernel, {"x": np.float32(1.1)}).run(3.0)
        np.testing.assert_array_equal(found["loss"], [np.float64(np.float32(1.1)) * 3])


@pytest.mark.parametrize("shape", [(), (3, 50), (70,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_copies(shape, dtype):
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    kernel = CopyOut("layer", array("x", *shape, dtype=dtype), array("out", *shape, dtype=dtype))
    np.testing.assert_array_equal(LibraryCase(kernel, {"x": x}).in_all_ways()["out"], x)
