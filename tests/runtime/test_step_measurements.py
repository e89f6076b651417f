"""First overflow of a step, from measurements of several minibatches."""

from types import SimpleNamespace

import numpy as np

from csrun.base.half_formats import FLOAT16
from csrun.executable import MeasuredSteps, RecordedValue, StepState
from csrun.executable.measured_values import ValueMeasurer
from csrun.runtime.chief.training.step_measurements import StepMeasurements

VALUES = (
    RecordedValue("a/where", "a", "where", "generated", "model.py:7"),
    RecordedValue("b/mm", "b", "mm", "product", "model.py:8"),
    RecordedValue("gradient:a/kernel", "a", "mm", "product", "model.py:6"),
    RecordedValue("gradient:a/bias", "a", "sum", "product", "model.py:6"),
    RecordedValue("x", "input", "input"),
)
MASK, LESS, MORE = [0.0, -np.inf], [1.0, -np.inf], [np.inf, 1.0]


def first_overflow(folder, *minibatches):
    steps = MeasuredSteps(9, VALUES)
    plan = SimpleNamespace(checksum="12", measuring=steps)
    measurements = StepMeasurements(SimpleNamespace(plans=[plan]), folder)
    directory = folder / "tfcs_12"
    directory.mkdir(exist_ok=True)
    for first_sample, values in enumerate(minibatches):
        measurer = ValueMeasurer(directory / "ranges", steps, FLOAT16)
        for number, value in enumerate(values):
            measurer(StepState(4, first_sample), number, np.float32(value))
    return measurements.first_overflow(5)


def test_the_first_of_all_minibatches(tmp_path):
    later, earlier = ([0.0], [0.0], MORE), ([0.0], MORE, MORE)
    found = "first in layer b (product), operator mm, model.py:8"
    assert first_overflow(tmp_path, later, earlier) == found


def test_minus_infinity_that_may_be_of_a_mask_is_named_only_if_there_is_no_other(tmp_path):
    of_gradient = "first in layer a (product), operator mm, model.py:6, in the gradient of a/kernel"
    assert first_overflow(tmp_path, (MASK, [0.0], LESS)) == of_gradient
    assert first_overflow(tmp_path, (MASK, LESS, MORE)) == of_gradient
    for later in (MORE, [np.nan]):
        assert first_overflow(tmp_path, (MASK, [0.0], LESS, later)) == of_gradient
    of_bias = first_overflow(tmp_path, ([0.0], [0.0], [0.0], LESS, MASK))  # beside an input's
    assert of_bias.endswith("in the gradient of a/bias")
    assert first_overflow(tmp_path, (MASK, [0.0], [0.0])).startswith("first in layer a (generated)")
    assert not first_overflow(tmp_path, ([0.0], [0.0], [0.0]))
