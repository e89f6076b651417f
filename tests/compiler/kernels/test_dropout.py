"""Dropout in compiled programs: against PyTorch under the same masks, and absent in evaluation."""

import msgspec
import numpy as np
import pytest
from support.programs import Machine, Network

from csrun import nn
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.base import attribute
from csrun.cirh.reference import MaskCounter, ModuleState, interpret
from csrun.cirh.reference.masks import dropout_mask
from csrun.compiler.passes import run_passes

MODES = (ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING)
RATE = 0.4


def masks_of(network, machine):
    """Masks of a step, drawn by the reference Philox."""
    draw = MaskCounter(0, machine.step_count)
    found = []
    for stream, units in enumerate(network.sizes[1:-1]):
        properties = {"rate": attribute(RATE), "stream": attribute(stream)}
        found.append(dropout_mask(properties, (network.batch, units), draw))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_gradients_under_the_masks_are_pytorchs(tmp_path, mode):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the gradients")
    network = Network(dropout=RATE, precision="float64")
    machine = Machine(network.compile(tmp_path, mode, 300), network.parameters())
    for batch in network.batches(3):
        masks = masks_of(network, machine)
        tensors = {
            name: torch.from_numpy(machine.state[name].copy()).requires_grad_()
            for name in network.parameters()
        }
        x = torch.from_numpy(batch[0]).flatten(1)
        for layer, mask in zip(("dense", "dense_1"), masks, strict=True):
            x = (x @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"]).relu()
            x = x * torch.from_numpy(mask) / (1 - RATE)
        logits = x @ tensors["dense_2/kernel"] + tensors["dense_2/bias"]
        expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch[1]).long())
        expected.backward()
        loss, gradients = machine.train(batch)
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        for name, tensor in tensors.items():
            np.testing.assert_allclose(gradients[name], tensor.grad, rtol=1e-9, atol=1e-12)


def test_the_program_computes_what_the_reference_does(tmp_path):
    network = Network(dropout=RATE)
    (batch,) = network.batches(1)
    inputs = {"features": batch[0], "labels": batch[1]}
    module = network.trace(RunMode.TRAIN)
    run_passes(module)
    result = interpret(
        module, inputs, ModuleState(network.parameters()), len(batch[1]), MaskCounter()
    )
    machine = Machine(network.compile(tmp_path, MODES[0]), network.parameters())
    loss, _ = machine.train(batch)
    assert loss == pytest.approx(float(result.loss), rel=1e-6)
    np.testing.assert_allclose(machine.output("logits"), result.outputs["logits"], rtol=1e-4)


def test_evaluation_has_no_trace_of_it(tmp_path):
    plain = Network().compile(tmp_path, MODES[0], run_mode=RunMode.EVAL)
    dropped = Network(dropout=RATE).compile(tmp_path, MODES[0], run_mode=RunMode.EVAL)
    checksums = plain.plan.checksum, dropped.plan.checksum
    assert dropped.program == plain.program.replace(*checksums)
    assert dropped.plan == msgspec.structs.replace(plain.plan, checksum=checksums[1])


def test_modes_and_groups_train_bit_for_bit_alike(tmp_path):
    network = Network(dropout=RATE)
    machines = [
        Machine(network.compile(tmp_path, mode, group_bytes), network.parameters())
        for mode in MODES
        for group_bytes in (1 << 20, 1)
    ]
    for batch in network.batches(10):
        assert len({machine.train(batch)[0] for machine in machines}) == 1


@pytest.mark.parametrize("rate", [1, -0.1, float("nan"), "half", True])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(UsageError, match=r"Dropout: rate must be in \[0, 1\), got "):
        nn.Dropout(rate)
