"""Sequential micro-batches: loss and gradients of the whole batch, with equal bits in each form."""

from dataclasses import replace

import numpy as np
import pytest
from support.programs import ArrayData, Network, options_of
from support.steps import Case, Training, filled_up, one_step

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import CompileError, compile_model
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
B = 12
STEPS = 4


def classifier(features, labels):
    """Two layers and dropout."""
    hidden = nn.Dropout(0.4)(nn.Dense(9, "relu")(features))
    logits = nn.Dense(4)(hidden)
    outputs = {
        "logits": logits,
        "mean": nn.mean(logits, axis=-1),
        "bias": nn.mean(nn.Dense(2)(hidden), axis=-1),
    }
    return nn.softmax_cross_entropy(logits, labels), outputs


def batch_of(rows, dtype="float32"):
    random = np.random.default_rng(rows)
    labels = random.integers(0, 4, rows).astype(np.int32)
    return random.standard_normal((rows, 6)).astype(dtype), labels


@pytest.mark.parametrize("rows", [B, 7, 2])
@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("count", [2, 12])
def test_a_step_is_that_of_the_whole_batch(tmp_path, count, mode, rows):
    """Including dropout and a mean over samples; some of the last parts are padding only."""
    given = batch_of(rows, "float64")
    case = Case(classifier, given, 1, B, mode)
    whole = one_step(case, tmp_path)
    parts = one_step(replace(case, micro_batches=count), tmp_path)
    assert parts.result.loss == pytest.approx(whole.result.loss, rel=1e-12)
    assert parts.result.rows == rows
    for name, expected in whole.result.outputs.items():
        np.testing.assert_allclose(parts.result.outputs[name], expected, 1e-11, 1e-13, err_msg=name)
    assert parts.gradients.keys() == whole.gradients.keys()
    for name, expected in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], expected, 1e-11, 1e-13, err_msg=name)


def trained(root, mode, momentum=0.9, **split):
    """Losses and weights of a few steps, the last batch shorter."""
    count = int(np.prod(list(split.values())))
    network = Network(batch=16 // count, dropout=0.3, momentum=momentum)
    executable = compile_model(
        network.trace(), root, options_of(mode, group_bytes=1, **split)
    ).executable
    batches = [*Network(batch=16).batches(STEPS - 1), Network(batch=10).batches(1)[0]]
    machine = CpuMachine(executable, ArrayData(batches), RunSettings(seed=1), 0)
    machine.initialize()
    losses = []
    for step in range(STEPS):
        assert machine.run(StepOrder(step, 1)).done == 1
        losses.append(machine.result(0, step).loss)
    return losses, {name: array.copy() for name, array in machine.state.items()}


def test_bits_are_those_of_minibatches_and_of_weight_streaming(tmp_path):
    """Minibatches in flight and replicas add in the same order, in other memory."""
    losses, state = trained(tmp_path, PIPELINED, minibatches_in_flight=4)
    for mode, split in (
        (PIPELINED, {"micro_batches": 4}),
        (STREAMING, {"micro_batches": 4}),
        (PIPELINED, {"micro_batches": 2, "minibatches_in_flight": 2}),
        (PIPELINED, {"replicas": 4}),
    ):
        found, arrays = trained(tmp_path, mode, **split)
        assert found == losses, split
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, state[name], err_msg=f"{split}: {name}")


def test_they_take_the_memory_of_one(tmp_path):
    """Only outputs exist for all of them, next to one's buffers and accumulated gradients."""

    def arena_bytes(batch, micro_batches):
        network = Network((64, 512, 512, 4), batch)
        options = options_of(STREAMING, micro_batches=micro_batches)
        return compile_model(network.trace(), tmp_path, options).executable.plan.arena_bytes

    whole, part = arena_bytes(4096, 1), arena_bytes(256, 16)
    outputs = 4096 * (4 * 4 + 8 + 4)
    assert part < whole / 16 + outputs + 4 * 2 * 512 * (64 + 512 + 1)


def test_a_loss_that_is_no_number_leaves_the_weights_alone(tmp_path):
    for bad in (1, 10):  # in the first part, and in the last
        case = Case(classifier, batch_of(B), 1, B, STREAMING, precision="float32", micro_batches=4)
        training = Training(case.compile(tmp_path))
        before = {name: array.copy() for name, array in training.state.items()}
        features, labels = filled_up(case.batch, B)
        features[bad] = np.nan
        assert np.isnan(training.step((features, labels), 0).result.loss)
        for name, array in training.state.items():
            np.testing.assert_array_equal(array, before[name])


def test_what_is_of_the_batch_as_a_whole_is_refused(tmp_path):
    def model(features, labels):
        return classifier(nn.BatchNorm()(features), labels)

    case = Case(model, batch_of(B), precision="float32", micro_batches=2)
    expected = r"the loss must be per sample .* in 2 micro-batches: remove micro_batch_size"
    with pytest.raises(CompileError, match=expected):
        case.compile(tmp_path)
    replace(case, run_mode=RunMode.EVAL).compile(tmp_path)
