"""Tied weights: one group with several visits, whose gradients are added in place."""

from math import prod

import numpy as np
import pytest
from support.programs import ArrayData, Machine, Network, TiedNetwork, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.products import MmOp
from csrun.compiler import compile_model
from csrun.compiler.graph import accumulate
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of tied weights")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SIZES = (20, 8, 8, 8, 20)
STEPS = 10


class Peer:
    """The same network in PyTorch."""

    def __init__(self, network, optimizer=torch.optim.SGD, **options):
        self.tensors = {
            n: torch.from_numpy(v.copy()).requires_grad_() for n, v in network.parameters().items()
        }
        options = options or {"lr": network.learning_rate, "momentum": network.momentum}
        self.optimizer = optimizer([*self.tensors.values()], **options)

    def train(self, batch):
        """Train a step; return the loss and the gradients."""
        hidden = torch.from_numpy(batch[0]).flatten(1) @ self.tensors["table/weight"]
        layers = [name.removesuffix("/kernel") for name in self.tensors if "kernel" in name]
        for layer in layers:
            kernel, bias = self.tensors[f"{layer}/kernel"], self.tensors[f"{layer}/bias"]
            hidden = (hidden @ kernel + bias).relu()
        logits = hidden @ self.tensors["table/weight"].T
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch[1]).long())
        loss.backward()
        gradients = {name: tensor.grad.numpy().copy() for name, tensor in self.tensors.items()}
        self.optimizer.step()
        return loss.item(), gradients


@pytest.mark.parametrize(
    ("mode", "tile"), [(PIPELINED, 1), (STREAMING, 40), (PIPELINED, 40), (STREAMING, 1 << 16)]
)
def test_steps_in_float64_are_pytorchs(tmp_path, monkeypatch, mode, tile):
    """The accumulated product is computed in tiles of one row, of several rows, and at once."""
    monkeypatch.setattr(accumulate, "TILE_ELEMENTS", tile)
    network = TiedNetwork(SIZES, precision="float64")
    machine = Machine(network.compile(tmp_path, mode, 1), network.parameters())
    peer = Peer(network)
    for batch in network.batches(STEPS):
        loss, gradients = machine.train(batch)
        their_loss, their_gradients = peer.train(batch)
        assert loss == pytest.approx(their_loss, rel=1e-10)
        for name, value in their_gradients.items():
            np.testing.assert_allclose(gradients[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "split"),
    [
        (PIPELINED, {"minibatches_in_flight": 2}),
        (PIPELINED, {"replicas": 2, "minibatches_in_flight": 4}),
        (PIPELINED, {"micro_batches": 4, "minibatches_in_flight": 2}),
        (STREAMING, {"micro_batches": 4}),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_parts_of_a_batch_add_up_to_pytorchs_steps(tmp_path, mode, split, clip_norm):
    whole = TiedNetwork(SIZES, precision="float64")
    part = TiedNetwork(
        SIZES,
        precision="float64",
        batch=whole.batch // prod(split.values()),
        optimizer=nn.SGD(whole.learning_rate, whole.momentum, clip_norm=clip_norm),
    )
    options = options_of(mode, group_bytes=1, **split)
    executable = compile_model(part.trace(), tmp_path, options).executable
    assert [group.layers for group in executable.plan.groups] == [
        ("table",),
        ("h/0/dense",),
        ("h/1/dense",),
    ]
    machine = CpuMachine(executable, ArrayData(whole.batches(STEPS)), RunSettings(seed=1), 0)
    for name, array in machine.state.items():
        array[...] = whole.parameters().get(name, 0)
    assert machine.run(StepOrder(0, STEPS)).done == STEPS
    peer = Peer(whole)
    if clip_norm:
        step = peer.optimizer.step

        def clipped():
            torch.nn.utils.clip_grad_norm_([*peer.tensors.values()], clip_norm)
            step()

        peer.optimizer.step = clipped
    for batch in whole.batches(STEPS):
        peer.train(batch)
    for name, tensor in peer.tensors.items():
        np.testing.assert_allclose(machine.state[name], tensor.detach(), rtol=1e-9, atol=1e-9)


def test_its_group_is_the_untied_ones_without_the_heads(tmp_path):
    sizes = (64, 32, 32, 32, 64)
    plan = TiedNetwork(sizes).compile(tmp_path, STREAMING, 10_000).plan
    assert [group.layers for group in plan.groups] == [("table",), ("h/0/dense", "h/1/dense")]
    assert [visit.function for visit in plan.visits] == [
        "forward_0",
        "forward_1",
        "forward_0_again_2",
        "backward_0",
        "backward_1",
        "backward_0_again_2",
        "backward_1_again_2",  # most of its gradients: the next step begins with group 0
    ]
    assert plan.deliveries == (0, 1)
    untied = Network(sizes).compile(tmp_path, STREAMING, 10_000).plan
    assert [len(group.layers) for group in untied.groups] == [1, 2, 1]


def test_no_second_gradient_is_alive(tmp_path):
    """Next to the slots there are activations and a tile; a pipeline's store has one gradient."""
    network = TiedNetwork((8000, 64, 64, 8000), batch=4)
    whole = 4 * 8000 * 64
    streaming = network.compile(tmp_path, STREAMING).plan
    slots = max(group.slot_offset_bytes + group.nbytes for group in streaming.groups)
    assert whole < slots < 1.1 * whole
    assert streaming.arena_bytes - slots < whole / 2
    pipelined = network.compile(tmp_path, PIPELINED).plan
    assert pipelined.store.nbytes < 3 * 1.1 * whole  # weights, gradients, momentum
    assert pipelined.arena_bytes - pipelined.store.nbytes < whole / 2


VOCABULARY, WIDTH, TOKENS = 3000, 64, 3


def language_model(precision, batch=4, padding_idx=None):
    """Language model whose table is used for lookup and, at the end, in attention."""
    with Tracer(precision) as tracer:
        tokens = tracer.input("tokens", (batch, TOKENS), "int32")
        labels = tracer.input("labels", (batch, TOKENS), "int32")
        table = nn.Embedding(VOCABULARY, WIDTH, padding_idx, name="wte")
        logits = table.attend(nn.Dense(WIDTH, "relu", name="fc")(table(tokens)))
        loss = nn.softmax_cross_entropy(logits, labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


@pytest.mark.parametrize("padding_idx", [None, 7])
@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_a_table_of_words_gets_both_gradients(tmp_path, mode, padding_idx):
    module = language_model("float64", padding_idx=padding_idx)
    executable = compile_model(module, tmp_path, options_of(mode, group_bytes=1)).executable
    plan = executable.plan
    late = [(1,)] if mode is STREAMING else []  # most of the layer's own
    assert [visit.gradients for visit in plan.visits] == [(), (), (), (0,), (1,), (0,), *late]
    sizes = [int(np.prod(buffer.shape)) for buffer in plan.buffers]
    assert max(sizes) < 0.4 * VOCABULARY * WIDTH  # no second gradient
    random = np.random.default_rng(4)
    values = {p.name: random.standard_normal(p.shape) / 4 for p in plan.parameters}
    tokens = random.integers(0, 12, (4, TOKENS)).astype(np.int32)
    labels = random.integers(0, 12, (4, TOKENS)).astype(np.int32)
    loss, gradients = Machine(executable, values).train((tokens, labels))
    table, kernel, bias = (
        torch.tensor(values[name], requires_grad=True)
        for name in ("wte/embeddings", "fc/kernel", "fc/bias")
    )
    words = torch.from_numpy(tokens).long()
    hidden = torch.nn.functional.embedding(words, table, padding_idx)
    logits = (hidden @ kernel + bias).relu() @ table.T
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(labels).long().flatten()
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, tensor in (("wte/embeddings", table), ("fc/kernel", kernel), ("fc/bias", bias)):
        np.testing.assert_allclose(gradients[name], tensor.grad, rtol=1e-9, atol=1e-12)


def tied_rows():
    """Square weight that is used three times in a row, and a gain that is used twice."""
    with Tracer("float64") as tracer:
        x = tracer.input("features", (4, 6), "float64")
        labels = tracer.input("labels", (4,), "int32")
        with nn.scope("loop"):
            weight = tracer.parameter("weight", (6, 6), nn.initializers.ones((6, 6)))
            gain = tracer.parameter("gain", (6,), nn.initializers.ones((6,)))
            for _ in range(3):
                x = nn.tanh(tracer.emit(MmOp, x, weight) * gain)
        loss = nn.softmax_cross_entropy(x, labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_a_weight_in_a_loop_is_one_visit_each_way(tmp_path, mode):
    plan = (executable := compile_model(tied_rows(), tmp_path, options_of(mode)).executable).plan
    assert [visit.function for visit in plan.visits] == ["forward_0", "backward_0"]
    random = np.random.default_rng(2)
    values = {"loop/weight": random.standard_normal((6, 6)), "loop/gain": random.random(6)}
    x, labels = random.standard_normal((4, 6)), np.array([0, 2, 5, 1], np.int32)
    loss, gradients = Machine(executable, values).train((x, labels))
    weight, gain = (torch.tensor(value, requires_grad=True) for value in values.values())
    hidden = torch.from_numpy(x)
    for _ in range(3):
        hidden = (hidden @ weight * gain).tanh()
    expected = torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels).long())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradients["loop/weight"], weight.grad, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients["loop/gain"], gain.grad, rtol=1e-9, atol=1e-12)
