"""Metrics computed on the host."""

import math

import numpy as np
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.runtime.step.results import HostCall, StepResult


def test_accuracy_counts_valid_rows_only():
    labels = np.array([1, 2, 3, IGNORE_INDEX, IGNORE_INDEX])
    found = nn.metrics.accuracy(labels, np.array([1, 2, 0, 3, IGNORE_INDEX]))
    assert (found.total, found.count) == (2.0, 3)
    assert found.value == pytest.approx(2 / 3)


def test_means_add_up_as_totals_and_counts():
    small = nn.metrics.accuracy([1, 1, 1, 1], [1, 1, 1, 1])
    large = nn.metrics.accuracy([0] * 12, [1] * 12)
    assert (small + large).value == 4 / 16


def test_the_mean_of_nothing_is_not_a_number():
    assert math.isnan(nn.metrics.accuracy([IGNORE_INDEX], [0]).value)


def test_shapes_must_agree():
    with pytest.raises(UsageError, match=r"equal shapes, got \[2\] and \[3\]"):
        nn.metrics.accuracy(np.zeros(2), np.zeros(3))
    with pytest.raises(UsageError, match=r"got shape \[2, 10\] for labels \[2\]: pass nn.argmax"):
        nn.metrics.accuracy(np.zeros(2), np.zeros((2, 10)))


def test_labels_and_predictions_that_change_places_are_seen():
    with pytest.raises(UsageError, match="labels come first") as caught:
        nn.metrics.accuracy(np.zeros(2, np.float32), np.zeros(2, np.int64))
    assert str(caught.value).startswith(f"{__file__}:")


def test_perplexity_is_that_of_all_labels():
    parts = [
        nn.metrics.perplexity(2.0, [1, 2, -100]),
        nn.metrics.perplexity(3.0, [[4], [5]]),
        nn.metrics.perplexity(9.0, [-100]),
    ]
    found = HostCall(lambda part: {"perplexity": part}, ("part",))
    for number, part in enumerate(parts):
        found.take(StepResult(number, 3, 0.0, 0, {"part": part}, ()))
    assert found.values() == {"perplexity": pytest.approx(math.exp((2 * 2 + 3 * 2) / 4))}
    assert nn.metrics.perplexity(1e4, [1]).value == math.inf
