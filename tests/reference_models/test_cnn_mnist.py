"""cnn_mnist against the same network in PyTorch; its data and accuracy."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.jobs import Sandbox
from support.programs import Machine
from support.reference_models import (
    MODELS,
    assert_same_step,
    batches,
    changed,
    small_groups,
    traced,
    weights_of,
)
from support.torch_cnn import TorchCnn

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.compiler import compile_model
from csrun.executable import machine_code
from csrun.params import load

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the models")

RATE, CLIP, DECAY = 1e-2, 0.5, 0.01
LIMITS = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-11)}  # of the loss; of a gradient
SHIPPED = MODELS / "cnn_mnist" / "configs" / "params.yaml"


@pytest.fixture(autouse=True)
def _one_thread():
    """Limit PyTorch to one thread, as the steps are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def params(cnn_mnist: Path) -> Any:
    """Params of a small network."""
    from params import Params

    params = changed(load(Params, SHIPPED), "model", filters=(4, 5), hidden_size=8)
    params = changed(params, "train_input", batch_size=16)
    optimizer = nn.AdamW(RATE, weight_decay=DECAY, clip_norm=CLIP)
    return msgspec.structs.replace(params, optimizer=optimizer)


class TrainedAlone(Machine):
    """Machine that returns gradients of weights only, not those of states."""

    def train(self, batch):
        loss, gradients = super().train(batch)
        states = {p.name for p in self.plan.parameters if p.is_state}
        return loss, {n: g for n, g in gradients.items() if n not in states}


def machine_of(
    root, params, precision="float64", mode=ExecutionMode.WEIGHT_STREAMING, kernels="numpy"
):
    module = traced(params, precision)
    executable = compile_model(module, root, small_groups(mode, kernels)).executable
    random = np.random.default_rng(5)
    weights = {
        p.name: (0.2 * random.standard_normal(p.shape) + ("gamma" in p.name)).astype(p.dtype)
        for p in executable.plan.parameters
        if not p.is_state
    }
    return TrainedAlone(executable, weights)


def assert_same_states(machine, peer, rel):
    for name, value in peer.states.items():
        np.testing.assert_allclose(machine.state[name], value, rtol=rel, atol=rel, err_msg=name)


@pytest.mark.parametrize("precision", LIMITS)
def test_a_step_is_pytorchs(tmp_path, params, precision):
    machine = machine_of(tmp_path, params, precision)
    (batch,) = batches(params, 1, precision)
    peer = TorchCnn(torch, weights_of(machine), params.model)
    assert_same_step(machine, peer, batch, *LIMITS[precision])
    assert_same_states(machine, peer, LIMITS[precision][0])


@pytest.mark.skipif(not machine_code.is_supported(), reason="this host has no machine code")
@pytest.mark.parametrize("mode", ExecutionMode)
@pytest.mark.parametrize("precision", LIMITS)
def test_steps_in_machine_code_are_pytorchs(tmp_path, params, precision, mode):
    machine = machine_of(tmp_path, params, precision, mode, "llvm")
    *before, batch = batches(params, 3, precision)
    for flat, _ in before:
        machine.train(flat)
    peer = TorchCnn(torch, weights_of(machine), params.model)
    assert_same_step(machine, peer, batch, *LIMITS[precision])
    assert_same_states(machine, peer, LIMITS[precision][0])


def test_the_step_after_a_hundred_is_pytorchs(tmp_path, params):
    machine = machine_of(tmp_path, params, "float32")
    *before, batch = batches(params, 101, "float32")
    for flat, _ in before:
        machine.train(flat)
    peer = TorchCnn(torch, weights_of(machine), params.model)
    assert_same_step(machine, peer, batch, *LIMITS["float32"])
    assert_same_states(machine, peer, LIMITS["float32"][0])


def test_a_training_follows_pytorchs(tmp_path, params):
    machine = machine_of(tmp_path, params)
    peer = TorchCnn(torch, weights_of(machine), params.model)
    some = list(batches(params, 20))
    ours = [machine.train(flat)[0] for flat, _ in some]
    expected = peer.train([nested for _, nested in some], RATE, CLIP, DECAY)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=0)
    assert_same_states(machine, peer, 1e-9)


def test_both_modes_give_the_same_bits(tmp_path, params):
    machines = [machine_of(tmp_path, params, "float32", mode) for mode in ExecutionMode]
    for flat, _ in batches(params, 3, "float32"):
        first, second = (machine.train(flat)[0] for machine in machines)
        assert first == second
    for name, value in machines[0].state.items():
        np.testing.assert_array_equal(value, machines[1].state[name], err_msg=name)


def test_an_epoch_has_each_image_at_each_shift_once(params):
    from data import read_digits, scaled, shifted, shifts_up_to, train_input_fn

    images, labels = read_digits("../fc_mnist/data", "train")
    shifts = shifts_up_to(2)
    assert len({tuple(s) for s in shifts}) == 25
    assert tuple(shifts[0]) == (0, 0)
    moved = shifted(images[:25], shifts)
    for image, shift, found in zip(images, shifts, moved, strict=False):
        np.testing.assert_array_equal(found, np.roll(image, shift, axis=(0, 1)))
    params = changed(params, "train_input", batch_size=25 * len(images) // 5, max_shift=2)
    epoch = islice(train_input_fn(params), 5)
    seen = [np.concatenate(parts) for parts in zip(*epoch, strict=True)]
    expected = sum(scaled(images).sum(axis=(1, 2)).astype("d"))
    assert seen[0].sum(dtype="d") == pytest.approx(25 * expected, rel=1e-6)
    np.testing.assert_array_equal(np.bincount(seen[1]), 25 * np.bincount(labels))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_epoch_of_the_shipped_digits_tells_98_of_100_test_digits(
    tmp_path: Path, cnn_mnist: Path
) -> None:
    from params import Params

    params = load(Params, SHIPPED)
    steps = 25 * 1437 // params.train_input.batch_size
    assert params.runconfig.max_steps == steps, "one epoch"
    place = Sandbox(tmp_path)
    run = ["python-ws", str(MODELS / "cnn_mnist" / "run.py"), "-o", "model_dir"]
    for mode in ("train", "eval"):
        with place.start("--total-nodes", "3", *run, "--mode", mode) as process:
            out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
    found = re.search(rf"global step {steps}: accuracy = ([\d.]+)", out)
    assert found
    assert float(found[1]) >= 0.98
