"""Sharded matrices: results, layout of the store, and memory of the wafer."""

from collections import Counter
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest
from support.programs import SYSTEM, ArrayData, Machine, TiedNetwork, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.cirh.ops.products import MmOp
from csrun.compiler import CompileError, compile_model
from csrun.compiler.options import SHARE
from csrun.executable import tensors_of
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of what is cut")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
B, T, V, D, UNITS = 4, 6, 61, 8, 40
MOST = 1024  # bytes: of float64, the table and a head come in four parts, both kernels in three
ADAMW = nn.AdamW(0.01, weight_decay=0.1)


@dataclass(frozen=True)
class Language:
    """Embedding, two dense layers, and a head: tied to the table, or with its own kernel."""

    tied: bool = True
    optimizer: nn.Optimizer = ADAMW
    precision: str = "float64"
    padding: int | None = None
    samples: int = B
    bias: str = "dense"  # of the head: the layer's, "none", or one of its own behind it

    def trace(self, run_mode=RunMode.TRAIN, outputs=False):
        with Tracer(self.precision) as tracer:
            ids = tracer.input("features", (self.samples, T), "int32")
            labels = tracer.input("labels", (self.samples, T), "int32")
            table = nn.Embedding(V, D, name="wte", padding_idx=self.padding)
            x = table(ids)
            x = nn.Dense(UNITS, "relu", name="up")(x)
            x = nn.Dense(D, name="down")(x)
            head = nn.Dense(V, use_bias=self.bias == "dense", name="head")
            logits = table.attend(x) if self.tied else head(x)
            logits = nn.Bias(name="own")(logits) if self.bias == "own" else logits
            loss = nn.softmax_cross_entropy(logits, labels)
            own = [("logits", logits)] if outputs else []
            return tracer.finish(run_mode, loss, self.optimizer.minimize(loss), own)

    def compile(self, root, mode=STREAMING, run_mode=RunMode.TRAIN, outputs=False, **options):
        options = options_of(mode, run_mode, group_bytes=1, **options)
        return compile_model(self.trace(run_mode, outputs), root, options).executable

    def weights(self, plan):
        random = np.random.default_rng(4)
        return {
            p.name: (0.3 * random.standard_normal(p.shape)).astype(p.dtype)
            for p in tensors_of(plan)
        }

    def batches(self, count, rows=B):
        """Batches in which some labels are ignored and only the first `rows` samples are valid."""
        random = np.random.default_rng(6)
        for _ in range(count):
            ids, labels = random.integers(0, V, (2, B, T)).astype("i")
            labels[random.random((B, T)) < 0.2] = IGNORE_INDEX
            labels[:, 0] = V - 1
            labels[rows:], ids[rows:] = IGNORE_INDEX, 0
            yield ids, labels


class Peer:
    """The same network in PyTorch, trained by AdamW."""

    def __init__(self, network, weights):
        self.network = network
        self.tensors = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in weights.items()}
        rate, decay = network.optimizer.learning_rate, network.optimizer.weight_decay
        self.optimizer = torch.optim.AdamW([*self.tensors.values()], rate, weight_decay=decay)

    def train(self, batch):
        ids, labels = (torch.from_numpy(a).long() for a in batch)
        w, functional = self.tensors, torch.nn.functional
        x = functional.embedding(ids, w["wte/embeddings"], self.network.padding)
        x = (x @ w["up/kernel"] + w["up/bias"]).relu() @ w["down/kernel"] + w["down/bias"]
        tied = self.network.tied
        logits = x @ (w["wte/embeddings"].T if tied else w["head/kernel"])
        logits = sum((w[n] for n in ("head/bias", "own/bias") if n in w), logits)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        gradients = {name: tensor.grad.numpy().copy() for name, tensor in w.items()}
        self.optimizer.step()
        return loss.item(), gradients


def whole(plan, gradients):
    """Gradients of the model's tensors, with shards concatenated."""
    found = {}
    for p in plan.parameters:
        own = gradients[p.name].T if p.is_transposed else gradients[p.name]
        found.setdefault(p.name if p.part is None else p.part.tensor, []).append(own)
    turned = {p.part.tensor for p in plan.parameters if p.part is not None and p.is_transposed}
    return {n: np.concatenate(own, axis=int(n in turned)) for n, own in found.items()}


@pytest.mark.parametrize(
    ("network", "mode", "rows"),
    [
        (Language(), STREAMING, B),
        (Language(), PIPELINED, B - 1),
        (Language(padding=V - 1), STREAMING, B),
        (Language(bias="own"), STREAMING, B),
        (Language(tied=False), STREAMING, B - 1),
        (Language(tied=False, bias="none"), PIPELINED, B),
        (Language(tied=False, bias="own"), STREAMING, B),
    ],
)
def test_steps_are_pytorchs(tmp_path, network, mode, rows):
    executable = network.compile(tmp_path, mode, max_group_bytes=MOST)
    weights = network.weights(executable.plan)
    parts = Counter(p.part.tensor for p in executable.plan.parameters if p.part is not None)
    heads = {} if network.tied else {"head/kernel": 4}
    assert parts == {"wte/embeddings": 4, "up/kernel": 3, "down/kernel": 3, **heads}
    machine, peer = Machine(executable, weights), Peer(network, weights)
    for batch in network.batches(5, rows):
        loss, gradients = machine.train(batch)
        their_loss, their_gradients = peer.train(batch)
        assert loss == pytest.approx(their_loss, rel=1e-11)
        gradients = whole(executable.plan, gradients)
        assert gradients.keys() == their_gradients.keys()
        for name, value in their_gradients.items():
            np.testing.assert_allclose(gradients[name], value, rtol=1e-8, atol=1e-12)
    for name, tensor in peer.tensors.items():
        np.testing.assert_allclose(machine.state[name], tensor.detach(), rtol=1e-7, atol=1e-10)


def test_a_matrix_that_is_multiplied_both_ways_gives_the_steps_of_the_whole_one(tmp_path):
    """One-hot rows sum over shards, the head concatenates them; one norm clips both."""
    sizes = (60, 8, 8, 60)
    network = TiedNetwork(sizes, precision="float64", optimizer=nn.Adam(0.01, clip_norm=0.1))
    options = [{}, {"max_group_bytes": MOST}]
    cut, uncut = (
        Machine(
            compile_model(network.trace(), tmp_path, options_of(STREAMING, **own)).executable,
            network.parameters(),
        )
        for own in reversed(options)
    )
    assert len(cut.plan.parameters) == len(uncut.plan.parameters) + 3
    for batch in network.batches(4):
        assert cut.train(batch)[0] == pytest.approx(uncut.train(batch)[0], rel=1e-11)
    assert cut.state.keys() == uncut.state.keys()
    for name, value in uncut.state.items():
        np.testing.assert_allclose(cut.state[name], value, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("mode", "how"), [(PIPELINED, "minibatches_in_flight"), (STREAMING, "micro_batches")]
)
@pytest.mark.parametrize("tied", [True, False])
def test_minibatches_of_matrices_in_parts_add_up(tmp_path, mode, how, tied):
    """Operators of shards are known to work per sample, or per padding row."""
    network = Language(tied)
    whole = network.compile(tmp_path, mode, max_group_bytes=MOST)
    half = replace(network, samples=B // 2)
    split = half.compile(tmp_path, mode, max_group_bytes=MOST, **{how: 2})
    assert split.plan.counts_padding is None
    weights = network.weights(whole.plan)
    batches = [*network.batches(2), *network.batches(2, B - 1)]
    machines = [CpuMachine(e, ArrayData(batches), RunSettings(), 0) for e in (whole, split)]
    for machine in machines:
        for name, value in machine.state.items():
            value[...] = weights.get(name, 0)
        machine.run(StepOrder(0, len(batches)))
    for name, value in machines[0].state.items():
        np.testing.assert_allclose(machines[1].state[name], value, rtol=1e-9, atol=1e-11)


def test_first_values_are_those_of_the_whole_tensors(tmp_path):
    network = Language(precision="float32")
    uncut = Machine(network.compile(tmp_path), {})
    cut = Machine(network.compile(tmp_path, max_group_bytes=MOST), {})
    assert list(cut.state) == list(uncut.state)
    for name, value in uncut.state.items():
        np.testing.assert_array_equal(cut.state[name], value, strict=True)


def test_a_small_wafer_cuts_as_a_large_one_that_is_told_to(tmp_path):
    """The programs are equal except for their checksum, so that their bits are equal."""
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=30)
    executables = [
        Language().compile(tmp_path, system=small),
        Language().compile(tmp_path, max_group_bytes=small.sram_bytes // SHARE),
    ]
    texts = [(e.directory / "program.py").read_text().splitlines()[1:] for e in executables]
    assert texts[0] == texts[1]
    here, there = (e.plan for e in executables)
    assert here.arena_bytes == there.arena_bytes <= small.sram_bytes
    assert here.parameters == there.parameters
    assert max(group.nbytes for group in here.groups) <= 1.25 * small.sram_bytes // SHARE
    with pytest.raises(CompileError, match=r"needs [\d,]+ bytes of [\d,]+ on the wafer"):
        Language().compile(tmp_path, system=small, max_group_bytes=1 << 20)
    report = (executables[0].directory / "compile_report.txt").read_text()
    assert "wte/embeddings (3.9 kB) exceeds max_group_bytes: it is streamed in 2 shards" in report


def test_what_no_part_fits_names_the_part(tmp_path):
    tiny = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=1)
    with pytest.raises(CompileError, match=r"layer \w+/\w+\[[:,]*\d+:\d+\] needs [\d,]+ bytes"):
        Language().compile(tmp_path, system=tiny)


@pytest.mark.parametrize("head", [{}, {"tied": False}, {"bias": "own"}])
def test_logits_are_never_there_whole_unless_somebody_reads_them(tmp_path, head):
    def largest(outputs):
        plan = Language(**head).compile(tmp_path, outputs=outputs, max_group_bytes=MOST).plan
        return max(np.prod(buffer.shape) for buffer in plan.buffers)

    assert largest(outputs=True) == B * T * V
    assert largest(outputs=False) == B * T * UNITS


def test_parts_are_visited_one_after_the_other_and_back(tmp_path):
    plan = Language().compile(tmp_path, max_group_bytes=MOST).plan
    place = {g.index: g.layers[0] for g in plan.groups}
    visited = [place[group] for visit in plan.visits for group in visit.groups]
    table = [f"wte/embeddings[{first}:{min(first + 16, V)}]" for first in range(0, V, 16)]
    head = [name for name in visited if name.startswith("wte")][len(table) :]
    assert visited[: len(table)] == table
    assert head == [*table, *reversed(table)]
    given = [place[group] for visit in plan.visits for group in visit.gradients]
    assert given[-len(table) :] == [*reversed(table)]  # without the rows themselves


def test_the_bias_of_a_head_comes_once(tmp_path):
    """The gradient of the bias does not need its value."""
    plan = Language(tied=False).compile(tmp_path, max_group_bytes=MOST).plan
    place = {g.index: g.layers[0] for g in plan.groups}
    visited = [place[group] for visit in plan.visits for group in visit.groups]
    parts = [f"head/kernel[:,{first}:{min(first + 16, V)}]" for first in range(0, V, 16)]
    head = [name for name in visited if name.startswith("head")]
    assert head == ["head", *parts, *reversed(parts)]
    (given,) = (v for v in plan.visits if "head" in [place[group] for group in v.gradients])
    assert not given.groups


@pytest.mark.parametrize("optimizer", [nn.Lamb(0.01), nn.SGD(0.01)], ids=["lamb", "sgd"])
def test_a_matrix_stays_whole_that_lamb_trains_or_is_used_otherwise(tmp_path, optimizer):
    is_lamb = isinstance(optimizer, nn.Lamb)
    with Tracer("float32") as tracer:
        x = tracer.input("x", (4, 40), "float32")
        labels = tracer.input("labels", (4,), "int32")
        with nn.scope("w"):
            kind = (40, 64)
            kernel = tracer.parameter("kernel", kind, nn.initializers.glorot_uniform(kind))
        loss = nn.softmax_cross_entropy(tracer.emit(MmOp, x, kernel), labels)
        if not is_lamb:
            loss = loss + nn.mean(kernel * kernel, axis=(0, 1))
        module = tracer.finish(RunMode.TRAIN, loss, optimizer.minimize(loss), [])
    other = module.clone()
    executable = compile_model(module, tmp_path, options_of(max_group_bytes=MOST)).executable
    assert [p.name for p in executable.plan.parameters] == ["w/kernel"]
    tiny = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=9)
    gradient = "its gradient is not a sum of products and lookups"
    why = "Lamb scales the update by norms of the full tensor" if is_lamb else gradient
    with pytest.raises(CompileError, match=f"w/kernel is not sharded: {why}$"):
        compile_model(other, tmp_path, options_of(STREAMING, system=tiny))


def test_numbers_that_no_part_has_are_refused_on_the_wafer(tmp_path):
    """Indices are computed on the wafer, where streamers cannot check them."""
    with Tracer("float32") as tracer:
        x = tracer.input("x", (4, 90), "float32")
        labels = tracer.input("labels", (4,), "int32")
        x = nn.Embedding(V, D, name="wte")(nn.argmax(x))
        loss = nn.softmax_cross_entropy(nn.Dense(3)(x), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    executable = compile_model(module, tmp_path, options_of(max_group_bytes=MOST)).executable
    machine, labels = Machine(executable, {}), np.zeros(4, np.int32)
    rows = np.zeros((4, 90), np.float32)
    rows[:, V - 1] = 1
    machine.train((rows, labels))
    rows[2, V] = 2
    with pytest.raises(Exception, match=rf"wte.*{V}"):
        machine.train((rows, labels))
