"""Gradients clipped by their global norm, against torch.nn.utils.clip_grad_norm_."""

import re
from dataclasses import replace
from math import inf, isnan, nan

import msgspec
import numpy as np
import pytest
from support.programs import ArrayData, Machine, Network, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.learning import Clipping
from csrun.compiler import compile_model
from csrun.executable import Commit, sums_of_squares
from csrun.executable.program_functions import total
from csrun.nn.errors import TraceError
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.step.updates import clipping
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of clipping")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
NORM = 0.6  # some steps' gradients are longer
CASES = {
    "sgd": (nn.SGD(0.05, 0.9, clip_norm=NORM), lambda p: torch.optim.SGD(p, 0.05, 0.9)),
    "adam": (nn.Adam(0.01, clip_norm=NORM), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (nn.AdamW(0.01, clip_norm=NORM), lambda p: torch.optim.AdamW(p, 0.01)),
}
STEPS = 30


def clip_norm(tensors):
    torch.nn.utils.clip_grad_norm_(tensors, NORM)


def trained(network, make, clip=clip_norm):
    """Weights after all steps in PyTorch, and how many gradients `clip` changed."""
    tensors = {n: torch.from_numpy(v).requires_grad_() for n, v in network.parameters().items()}
    optimizer, clipped = make([*tensors.values()]), 0
    for x, labels in network.batches(STEPS):
        hidden = torch.from_numpy(x).flatten(1)
        layers = [name.removesuffix("/kernel") for name in tensors if "kernel" in name]
        for layer in layers:
            hidden = hidden @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"]
            hidden = hidden.relu() if layer != layers[-1] else hidden
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels).long()).backward()
        before = [tensor.grad.clone() for tensor in tensors.values()]
        clip([*tensors.values()])
        clipped += sum(
            not torch.equal(old, tensor.grad)
            for old, tensor in zip(before, tensors.values(), strict=True)
        )
        optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}, clipped


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("name", CASES)
def test_clipped_steps_in_float64_are_pytorchs(tmp_path, mode, name):
    optimizer, make = CASES[name]
    network = Network(precision="float64", optimizer=optimizer)
    executable = network.compile(tmp_path, mode, 1)
    assert len(executable.plan.groups) == 3
    assert executable.plan.commit is Commit.AFTER_ALL_GRADIENTS
    machine = Machine(executable, network.parameters())
    for batch in network.batches(STEPS):
        machine.train(batch)
    expected, clipped = trained(network, make)
    assert 5 * len(expected) < clipped < STEPS * len(expected)
    for tensor, value in expected.items():
        np.testing.assert_allclose(machine.state[tensor], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("replicas", "minibatches"), [(1, 4), (2, 2)])
def test_the_gradient_of_all_minibatches_is_clipped(tmp_path, replicas, minibatches):
    optimizer, make = CASES["sgd"]
    whole = Network(precision="float64", optimizer=optimizer)
    part = Network(precision="float64", optimizer=optimizer, batch=whole.batch // 4)
    options = options_of(PIPELINED, replicas=replicas, minibatches_in_flight=minibatches)
    executable = compile_model(part.trace(), tmp_path, options).executable
    machine = CpuMachine(executable, ArrayData(whole.batches(STEPS)), RunSettings(seed=1), 0)
    for name, array in machine.state.items():
        array[...] = whole.parameters().get(name, 0)
    assert machine.run(StepOrder(0, STEPS)).done == STEPS
    for name, value in trained(whole, make)[0].items():
        np.testing.assert_allclose(machine.state[name], value, rtol=1e-9, atol=1e-9)


class Limited:
    """Optimizer with limits that no public option sets."""

    def __init__(self, optimizer, limits):
        self._optimizer, self._limits = optimizer, limits

    def minimize(self, loss):
        return replace(self._optimizer.minimize(loss), clipping=self._limits)


def limit_each(tensors, most):
    for tensor in tensors:
        torch.nn.utils.clip_grad_norm_([tensor], most)


LIMITS = {
    "each": (Clipping(clip_each=0.3), lambda tensors: limit_each(tensors, 0.3)),
    "value": (
        Clipping(clip_value=0.03),
        lambda tensors: torch.nn.utils.clip_grad_value_(tensors, 0.03),
    ),
    "both": (
        Clipping(clip_norm=NORM, clip_each=0.3),
        lambda tensors: (
            torch.nn.utils.clip_grad_norm_(tensors, NORM),
            limit_each(tensors, 0.3),
        ),
    ),
}


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("optimizer", CASES)
def test_gradients_of_a_tensor_are_limited(tmp_path, mode, name, optimizer):
    limits, clip = LIMITS[name]
    ours, make = CASES[optimizer]
    plain = msgspec.structs.replace(ours, clip_norm=None)
    network = Network(precision="float64", optimizer=Limited(plain, limits))
    machine = Machine(network.compile(tmp_path, mode, 1), network.parameters())
    for batch in network.batches(STEPS):
        machine.train(batch)
    expected, clipped = trained(network, make, clip)
    assert 5 < clipped < STEPS * len(expected)
    for tensor, value in expected.items():
        # PyTorch adds 1e-6 to a norm before it divides.
        np.testing.assert_allclose(machine.state[tensor], value, rtol=1e-4, atol=1e-5)


def test_groups_do_not_change_a_bit(tmp_path):
    network = Network((40, 30, 20, 30, 10), optimizer=nn.SGD(0.05, 0.9, clip_norm=NORM))
    machines = [
        Machine(network.compile(tmp_path, mode, group_bytes), network.parameters())
        for mode in (PIPELINED, STREAMING)
        for group_bytes in (1 << 20, 1)
    ]
    for batch in network.batches(20):
        assert len({machine.train(batch)[0] for machine in machines}) == 1
    for name, value in machines[0].state.items():
        assert all(np.array_equal(value, m.state[name]) for m in machines[1:]), name


def test_memoryx_holds_all_gradients_only_to_clip_them(tmp_path):
    """Weights, momentum and all gradients if they are clipped, else those of up to three groups:

    the second group's, which two visits write with the first group's in between, and two others.
    """
    network = Network((40, 40, 40, 40, 40, 40), optimizer=nn.SGD(0.05, 0.9))
    plan = network.compile(tmp_path, STREAMING, 1).plan
    assert len(plan.groups) == 5
    weights, largest = sum(g.nbytes for g in plan.groups), max(g.nbytes for g in plan.groups)
    assert plan.store.nbytes == 2 * weights + 3 * largest
    clipped = replace(network, optimizer=nn.SGD(0.05, 0.9, clip_norm=1.0))
    assert clipped.compile(tmp_path, STREAMING, 1).plan.store.nbytes == 3 * weights


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 3.0, 1e30, inf, nan])
def test_the_factor_is_pytorchs(norm):
    tensor = torch.ones(1, dtype=torch.float64, requires_grad=True)
    tensor.grad = torch.full((1,), norm, dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([tensor], 1.0)
    ours, theirs = norm * clipping(norm, 1.0), tensor.grad.item()
    assert ours == theirs or (isnan(ours) and isnan(theirs))


def test_squares_are_added_in_float64_whatever_is_beside():
    random = np.random.default_rng(5)
    arrays = [
        random.standard_normal(n).astype("f") * s for n, s in ((1, 1), (10_000, 1e20), (0, 1))
    ]
    sums = sums_of_squares(arrays)()
    np.testing.assert_allclose(sums, [np.square(a.astype("d")).sum() for a in arrays], rtol=1e-12)
    assert [sums_of_squares([array])()[0] for array in arrays] == sums
    assert total([1e100, 1.0, -1e100]) == 1.0
    assert total([1.7e308, 1.7e308]) == inf


@pytest.mark.parametrize("optimizer", [nn.SGD, nn.Adam, nn.AdamW])
@pytest.mark.parametrize("norm", [0.0, -1.0, nan, inf])
def test_a_norm_must_be_positive_and_finite(optimizer, norm):
    message = f"clip_norm must be > 0 and finite, got {norm}"
    with pytest.raises(TraceError, match=re.escape(message)):
        optimizer(0.1, clip_norm=norm)
