"""Steps in mixed precision, in both execution modes, against PyTorch with the same roundings."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from support.matrix_products import INSTRUCTIONS
from support.programs import ArrayData, Network
from support.roundings import rounded, storing

from csrun import nn
from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.executable import bfloat16, flat_views, kernel_code, machine_code, wafer_views
from csrun.executable.store_places import gradient_bytes
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Feed
from csrun.runtime.step.scale_rows import scale_tracker
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of mixed precision")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
FORMATS = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}
STEPS = 40
KERNELS = ["numpy", *(["llvm"] if machine_code.is_supported() else [])]


class Trained:
    """Result of some steps: losses, weights by name, state of the loss scale."""

    def __init__(
        self, network: Network, folder, mode=PIPELINED, steps=STEPS, data_batch=None, **options
    ):
        self.executable = network.compile(folder, mode, 1, **options)
        of_data = replace(network, batch=data_batch or network.batch)
        batches = ArrayData(of_data.batches(steps))
        machine = CpuMachine(self.executable, batches, RunSettings(), 0)
        machine.initialize()
        self.machine = machine
        for name, value in network.parameters().items():
            machine.state[name][...] = value
        tracker = scale_tracker(self.executable.plan, machine.numbers, None)
        if tracker is not None:
            tracker.begin(0)
        assert machine.run(StepOrder(0, steps)).done == steps
        self.stopped = None if tracker is None else tracker.finish(0, steps)
        self.scale = None if tracker is None else tracker.state
        self.losses = machine.losses(steps)
        self.weights = {name: np.array(machine.state[name]) for name in network.parameters()}

    @property
    def bits(self):
        return {name: value.tobytes() for name, value in self.weights.items()}, self.losses


def gradients_of_torch(network, kind):
    """Gradients of a float64 step, rounded wherever csrun stores 16 bits."""
    store = storing(torch, kind)
    ((x, labels),) = network.batches(1)
    leaves = {
        n: torch.from_numpy(v).double().requires_grad_() for n, v in network.parameters().items()
    }
    hidden = store(torch.from_numpy(x).double().flatten(1))
    layers = [name.removesuffix("/kernel") for name in leaves if "kernel" in name]
    for layer in layers:
        hidden = hidden @ store(leaves[f"{layer}/kernel"]) + store(leaves[f"{layer}/bias"])
        hidden = store(hidden.relu() if layer != layers[-1] else hidden)
    torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels).long()).backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items()}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_has_the_gradients_of_pytorch_with_the_same_roundings(tmp_path, name, kernels):
    rate = 1.0
    network = Network(storage=FORMATS[name], optimizer=nn.SGD(rate))
    trained = Trained(network, tmp_path, steps=1, kernels=kernels)
    first = network.parameters()
    for parameter, expected in gradients_of_torch(network, FORMATS[name]).items():
        found = (first[parameter].astype(np.float64) - trained.weights[parameter]) / rate
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < FORMATS[name].epsilon, parameter


@pytest.mark.parametrize("products", ["own", *INSTRUCTIONS])
def test_a_step_in_bfloat16_is_near_autocasts(tmp_path, products):
    kernels = "numpy" if products == "own" else "llvm"
    network = Network(storage=BFLOAT16, optimizer=nn.SGD(1.0))
    trained = Trained(network, tmp_path, steps=1, kernels=kernels, products=products)
    ((x, labels),) = network.batches(1)
    leaves = {n: torch.from_numpy(v).requires_grad_() for n, v in network.parameters().items()}
    with torch.autocast("cpu", torch.bfloat16):
        hidden = torch.from_numpy(x).flatten(1)
        layers = [name.removesuffix("/kernel") for name in leaves if "kernel" in name]
        for layer in layers:
            hidden = torch.nn.functional.linear(
                hidden, leaves[f"{layer}/kernel"].T, leaves[f"{layer}/bias"]
            )
            hidden = hidden.relu() if layer != layers[-1] else hidden
        loss = torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels).long())
    loss.backward()
    for name, leaf in leaves.items():
        found = network.parameters()[name] - trained.weights[name]
        error = np.linalg.norm(found - leaf.grad.numpy()) / np.linalg.norm(leaf.grad.numpy())
        assert error < 2e-2, name


@pytest.mark.skipif(not machine_code.is_supported(), reason="this host has no machine code")
@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("products", INSTRUCTIONS)
def test_bfloat16_pairs_match_float32_products(tmp_path, monkeypatch, caplog, products, is_here):
    """Bits are equal without subnormal numbers; missing instructions are logged."""
    caplog.set_level(logging.INFO, "csrun")
    kernel_code._log_once.cache_clear()
    network = Network(storage=BFLOAT16)
    whole = Trained(network, tmp_path / "float32", kernels="llvm")
    if not is_here:
        monkeypatch.setattr(bfloat16, "has", lambda instructions: False)
    pairs = Trained(network, tmp_path / "pairs", kernels="llvm", products=products)
    assert pairs.bits == whole.bits or (products == "amx_bf16" and is_here)
    for name, found in pairs.weights.items():
        wanted = whole.weights[name]
        assert np.linalg.norm(found - wanted) < BFLOAT16.epsilon * np.linalg.norm(wanted), name
    manifest = pairs.executable.kernels.manifest
    assert all(product.in_pairs for product in manifest.products.values())
    report = (pairs.executable.directory / "compile_report.txt").read_text()
    count = len(manifest.products)
    title = bfloat16.TITLES[products]
    text = " ".join(report.split())
    assert f"{count} of {count} products in {title}" in text
    assert "Precision: float32, stored in 16 bits: bfloat16." in text
    assert "Numbers of any precision count as 16-bit ones, 2 bytes each" in text
    assert pairs.executable.plan.products == products
    told = [line for line in caplog.messages if title in line]
    assert bool(told) is not is_here


@pytest.mark.parametrize("name", FORMATS)
def test_both_modes_and_parts_have_the_same_bits(tmp_path, name):
    optimizer = nn.Adam(0.01, clip_norm=0.6, loss_scaling_factor="dynamic", max_loss_scale=2.0**24)
    network = Network(storage=FORMATS[name], optimizer=optimizer, dropout=0.1)
    for kernels in KERNELS:
        pipelined, streamed = (
            Trained(network, tmp_path, mode, kernels=kernels) for mode in (PIPELINED, STREAMING)
        )
        assert pipelined.bits == streamed.bits
        assert pipelined.scale == streamed.scale


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_weights_and_gradients_are_words_and_the_masters_float32(tmp_path, mode):
    network = Network(storage=BFLOAT16)
    executable = network.compile(tmp_path, mode, 1)
    plan = executable.plan
    arena, store = (np.zeros(n, np.uint8) for n in (plan.arena_bytes, plan.store.nbytes))
    views = wafer_views(plan, arena, store)
    for p in plan.parameters:
        found = views[p.name], views[f"gradient:{p.name}"]
        assert [(each.dtype, each.shape) for each in found] == 2 * [(np.uint16, p.shape)]
        assert p.dtype == "float32"
    weights = Trained(network, tmp_path).weights["dense/kernel"]
    assert (rounded(torch, BFLOAT16, torch.from_numpy(weights)).numpy() != weights).any()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_words_in_the_store_are_those_of_the_updated_weights(tmp_path, mode, kernels):
    network = Network(storage=FLOAT16)
    options = {"kernels": kernels, "micro_batches": 2}
    trained = Trained(network, tmp_path, mode, data_batch=2 * network.batch, **options)
    plan = trained.executable.plan
    views = flat_views(plan, trained.machine._memory.store)
    for group in plan.groups:
        words, weights = (views[f"{name}/{group.index}"] for name in ("words", "weights"))
        np.testing.assert_array_equal(words.view(np.float16), weights.astype(np.float16))


def test_a_streamed_step_of_one_batch_needs_no_words_in_the_store(tmp_path):
    network = Network(storage=FLOAT16)
    parts = {"micro_batches": 2}
    has_words = {
        "pipelined": network.compile(tmp_path, PIPELINED, 1),
        "streamed": network.compile(tmp_path, STREAMING, 1),
        "in parts": network.compile(tmp_path, STREAMING, 1, **parts),
        "accumulated": network.compile(tmp_path, STREAMING, 1, accumulates=True),
        "evaluated": network.compile(tmp_path, STREAMING, 1, RunMode.EVAL),
    }
    without = [n for n, e in has_words.items() if e.plan.store.words_offset is None]
    assert without == ["streamed"]
    whole = replace(network, storage=None).compile(tmp_path, STREAMING, 1).plan.store
    window = has_words["streamed"].plan.store.gradients_bytes
    streamed = has_words["streamed"].plan.store
    assert streamed.nbytes == whole.nbytes - whole.gradients_bytes + window


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_narrowed_as_numpy_does(tmp_path, name, kernels):
    """All exponents, NaN and infinities, in an array whose length no vector width divides."""
    half = FORMATS[name]
    bits = np.random.default_rng(5).integers(0, 1 << 32, 100_003, np.uint32)
    weights = bits.view("f")
    weights[:3] = np.nan, np.inf, -np.inf
    found, expected = np.zeros((2, len(weights)), np.uint16)
    executable = Network(storage=half).compile(tmp_path, STREAMING, 1, kernels=kernels)
    executable.words_binder()(weights, found)()
    half.narrow(weights, expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("options", [{"micro_batches": 2}, {"systems": 2}])
def test_sums_of_gradients_are_float32(tmp_path, options):
    store = Network(storage=FLOAT16).compile(tmp_path, STREAMING, 1, **options).plan.store
    assert not store.has_half_gradients


def test_slots_are_half_as_long(tmp_path):
    sizes = [256, 512, 512, 256]
    whole, half = (
        Network(sizes=sizes, storage=kind).compile(tmp_path / str(kind), STREAMING, 1).plan
        for kind in (None, FLOAT16)
    )
    slots = [max(g.slot_offset_bytes + g.sent_bytes for g in p.groups) for p in (whole, half)]
    windows = [
        max(g.gradients_offset_bytes + gradient_bytes(p, g) for g in p.groups)
        for p in (whole, half)
    ]
    assert slots[1] <= slots[0] / 2
    assert windows[1] <= windows[0] / 2
    assert [g.sent_bytes for g in half.groups] == [g.sent_bytes / 2 for g in whole.groups]


FACTOR = 2.0**-25


def vanishing(storage, **options):
    """Network whose gradients underflow in float16."""
    optimizer = nn.SGD(0.05 / FACTOR, 0.9, **options)
    return Network(storage=storage, optimizer=optimizer, loss_factor=FACTOR)


def test_gradients_that_vanish_in_float16(tmp_path):
    network = vanishing(None)
    in_half = [
        torch.from_numpy(FACTOR * g).half() for g in gradients_of_torch(network, BFLOAT16).values()
    ]
    assert not any(g.any() for g in in_half), "PyTorch's vanish, too"
    expected = np.mean(Trained(network, tmp_path).losses[-8:])
    first = network.parameters()
    unscaled = Trained(vanishing(FLOAT16), tmp_path)
    assert all((unscaled.weights[name] == value).all() for name, value in first.items())
    scaled = Trained(
        vanishing(
            FLOAT16,
            loss_scaling_factor="dynamic",
            max_loss_scale=2.0**24,
            initial_loss_scale=2.0**24,
        ),
        tmp_path,
    )
    wide = Trained(vanishing(cbfloat16()), tmp_path)
    for trained in (scaled, wide):
        assert np.mean(trained.losses[-8:]) == pytest.approx(expected, rel=0.02)


def test_an_overflow_skips_the_step_and_halves(tmp_path):
    options = {"initial_loss_scale": 2.0**30, "max_loss_scale": 2.0**30}
    optimizer = nn.SGD(0.05, loss_scaling_factor="dynamic", **options)
    network = Network(storage=FLOAT16, optimizer=optimizer)
    trained = Trained(network, tmp_path, steps=1)
    assert trained.bits[0] == {n: v.tobytes() for n, v in network.parameters().items()}
    assert trained.scale == (2.0**29, 0, 0, 1)
    assert trained.stopped is None


def test_an_overflow_at_the_smallest_scale_ends_the_run(tmp_path):
    options = {"initial_loss_scale": 2.0**30, "max_loss_scale": 2.0**30, "min_loss_scale": 2.0**30}
    optimizer = nn.SGD(0.05, loss_scaling_factor="dynamic", **options)
    trained = Trained(Network(storage=FLOAT16, optimizer=optimizer), tmp_path, steps=2)
    assert trained.stopped.startswith("Minimum loss scale threshold was reached")
    assert trained.stopped.endswith("at step 1")


def test_a_scale_of_a_power_of_two_changes_no_bit_in_float32(tmp_path):
    plain = Trained(Network(optimizer=nn.SGD(0.05)), tmp_path)
    scaled = Trained(Network(optimizer=nn.SGD(0.05, loss_scaling_factor=1024.0)), tmp_path)
    assert plain.bits == scaled.bits
    assert scaled.scale == (1024, 0, 0, 0)


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_an_evaluation_over_the_trainings_store_reads_the_newest_weights(tmp_path, mode):
    network = Network(storage=BFLOAT16)
    training = network.compile(tmp_path / "train", mode, 1)
    evaluation = network.compile(tmp_path / "eval", mode, 1, RunMode.EVAL)
    batches = network.batches(4)
    machine = CpuMachine(training, ArrayData(batches), RunSettings(), 0)
    machine.initialize()
    program = machine.load(evaluation, Feed(ArrayData(batches)))
    losses = []
    for step in range(3):
        assert machine.run(StepOrder(step, 1)).done == 1
        assert program.run(StepOrder(step, 1)).done == 1
        losses.append(program.losses(1)[0])
    weights = {name: np.array(machine.state[name]) for name in network.parameters()}
    alone = CpuMachine(evaluation, ArrayData(batches[2:]), RunSettings(), 0)
    for name, value in weights.items():
        alone.state[name][...] = value
    assert alone.run(StepOrder(0, 1)).done == 1
    assert alone.losses(1)[0] == losses[-1]
