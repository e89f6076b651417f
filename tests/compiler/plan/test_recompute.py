"""Recomputation: less memory, the same bits, and additional loads of weights."""

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from support.programs import ArrayData, Machine, options_of, system_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import CompileError, TooLargeError, compile_model
from csrun.compiler import compile as room
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels import Phase
from csrun.compiler.plan import recompute
from csrun.compiler.plan.memory_plan import lifetimes, place
from csrun.compiler.plan.store_layout import Layout
from csrun.compiler.plan.visits import Function
from csrun.executable import Group, Visit
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

STREAMING = ExecutionMode.WEIGHT_STREAMING
B, T, D, BLOCKS, CLASSES = 4, 6, 8, 3, 7
STEPS = 2


def block(x, dropout=0.3):
    """Attention and a feed-forward network, with operators that overwrite their operands."""
    h = nn.LayerNorm(name="norm")(x)
    with nn.scope("attn"):
        heads = (x.shape[0], 1, T, D)
        q, k, v = (nn.reshape(nn.Dense(D, name=name)(h), heads) for name in "qkv")
        attended = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + nn.Dropout(dropout)(nn.reshape(attended, x.shape))
    with nn.scope("mlp"):
        up = nn.Dense(4 * D, "gelu_tanh", name="up")(nn.LayerNorm(name="norm")(x))
        return nn.relu(x + nn.Dropout(dropout)(nn.Dense(D, name="down")(up)))


def normalized(x):
    """Batch norm, whose kernel also computes the next running statistics."""
    wide = nn.Dense(4 * D, "gelu", name="up")(x)
    return x + nn.Dense(D, "gelu", name="down")(nn.BatchNorm(name="norm")(wide))


def network(each=block, optimizer=None, samples=B, classes=CLASSES):
    with Tracer("float32") as tracer:
        tokens = tracer.input("features", (samples, T), "int32")
        labels = tracer.input("labels", (samples, T), "int32")
        x = nn.Embedding(classes, D, name="table")(tokens)
        for number in range(BLOCKS):
            with nn.scope("h"), nn.scope(number):
                x = each(x)
        loss = nn.softmax_cross_entropy(nn.Dense(classes, name="head")(x), labels)
        optimizer = optimizer or nn.AdamW(0.01, clip_norm=1.0)
        return tracer.finish(RunMode.TRAIN, loss, optimizer.minimize(loss), [])


def batches(classes=CLASSES):
    random = np.random.default_rng(2)
    for _ in range(STEPS):
        tokens, labels = random.integers(0, classes, (2, B, T)).astype(np.int32)
        labels[-1, 2:] = IGNORE_INDEX
        yield tokens, labels


def compiled(root, module, **options):
    return compile_model(module, root, options_of(STREAMING, group_bytes=1, **options)).executable


def trained(executable):
    """Losses and state after a few steps, with slots and arena poisoned."""
    random = np.random.default_rng(3)
    first = {p.name: random.standard_normal(p.shape) / 9 for p in executable.plan.parameters}
    machine = Machine(executable, first)
    machine.arena[...] = 0xFF
    losses = [machine.train(batch)[0] for batch in batches()]
    return losses, {name: array.copy() for name, array in machine.state.items()}


def assert_same(ours, theirs):
    assert ours[0] == theirs[0]
    assert np.isfinite(ours[0]).all()
    for name, array in theirs[1].items():
        np.testing.assert_array_equal(ours[1][name], array, err_msg=name)


def test_a_plan_that_does_not_fit_takes_less_and_has_the_same_bits(tmp_path):
    whole = compiled(tmp_path, network())
    assert not whole.plan.recomputed
    small = system_of(whole.plan.arena_bytes * 2 // 3)
    with pytest.raises(CompileError, match="needs"):
        compiled(tmp_path, network(), system=small)
    again = compiled(tmp_path, network(), system=small, recompute=True)
    assert again.plan.recomputed
    assert again.plan.arena_bytes <= small.sram_bytes
    assert_same(trained(again), trained(whole))
    report = (again.directory / "compile_report.txt").read_text()
    assert f"forward pass of {len(again.plan.recomputed)} segments is recomputed" in report


def test_micro_batches_of_it_and_matrices_in_parts_have_the_bits_of_a_large_wafer(tmp_path):
    """Embedding table, kernels of a block, and a head whose logits never exist as one array."""
    classes, cut = 61, {"micro_batches": 2, "max_group_bytes": 512}
    module = network(samples=B // 2, classes=classes)
    large = compiled(tmp_path, module.clone(), **cut)
    small = system_of(large.plan.arena_bytes * 3 // 4)
    again = compiled(tmp_path, module, system=small, recompute=True, **cut)
    assert again.plan.recomputed
    assert again.plan.arena_bytes <= small.sram_bytes
    assert max(prod(buffer.shape) for buffer in again.plan.buffers) < B // 2 * T * classes
    parts = {p.part.tensor for p in again.plan.parameters if p.part is not None}
    assert parts >= {"table/embeddings", "h/0/mlp/up/kernel", "head/kernel"}
    data = ArrayData([*batches(classes)])
    machines = [CpuMachine(each, data, RunSettings(seed=3), 0) for each in (again, large)]
    ours, theirs = (_run(machine) for machine in machines)
    assert_same(ours, theirs)


def _run(machine):
    machine.initialize()
    machine.run(StepOrder(0, STEPS))
    return [machine.result(i, i).loss for i in range(STEPS)], machine.state


def test_what_fits_is_computed_once(tmp_path):
    assert not compiled(tmp_path, network(), recompute=True).plan.recomputed


def each_cut(monkeypatch):
    """Indices of the possible cuts of the forward pass, each applied alone."""
    cuts_of, number, found = recompute.cuts_of, 0, [()]

    def one(layout):
        found[:] = [cut for at, cut in enumerate(cuts_of(layout)) if at == number]
        return found

    monkeypatch.setattr(recompute, "cuts_of", one)
    while found:
        yield number
        number += 1


def writes_again(executable):
    """Arrays that recomputed forward visits write a second time."""
    lines = (executable.directory / "kernels.txt").read_text().splitlines()
    found, is_again = "", False
    for line in lines:
        if not line.startswith(" "):
            is_again = line.endswith("_recomputed")
        elif is_again:
            found += line.partition("->")[2]
    return found


@pytest.mark.parametrize(
    ("each", "cuts"), [pytest.param(block, 5, marks=pytest.mark.slow), (normalized, 2)]
)
def test_bits_are_the_same_wherever_the_forward_pass_is_cut(tmp_path, monkeypatch, each, cuts):
    """The next running statistics, stored among the gradients, are computed once."""
    whole = compiled(tmp_path, network(each))
    expected = trained(whole)
    seen = set()
    fitting = room.place_model

    def place_model(model, layout, options, batch):
        if options.recompute and not layout.recomputed:
            raise TooLargeError("", 0, "")
        return fitting(model, layout, options, batch)

    monkeypatch.setattr(room, "place_model", place_model)
    for number in each_cut(monkeypatch):
        try:
            again = compiled(tmp_path / str(number), network(each), recompute=True)
        except TooLargeError:  # no segment of the cut can be made again
            continue
        seen.add(again.plan.recomputed)
        assert_same(trained(again), expected)
        assert "gradient:" not in writes_again(again)
    assert len(seen) >= cuts
    if each is block:
        assert tuple(f"h/{number}" for number in range(BLOCKS)) in seen


@dataclass(frozen=True)
class Stub:
    """Kernel defined only by what it reads and writes."""

    phase: Phase
    read: str
    written: str
    parameters = scratch = ()

    @property
    def reads(self):
        return [Array(name, (1,), "float32") for name in self.read]

    @property
    def writes(self):
        return [Array(name, (1,), "float32") for name in self.written]


def layout_of(*kernels):
    """Layout in which each kernel is a visit with its own group and layer."""
    groups = tuple(Group(n, (f"layer_{n}",), 64 * n, 64) for n in range(len(kernels)))
    functions = (
        Function(Visit(f"{kernel.phase}_{n}", (n,)), (kernel,)) for n, kernel in enumerate(kernels)
    )
    return Layout((), (), groups, tuple(functions))


@pytest.mark.parametrize(
    ("third", "last", "is_possible"),
    [
        (("ab", "d"), ("cd", "e"), True),
        (("ab", "a"), ("ca", "e"), False),  # the segment's input is written over, forward
        (("ab", "d"), ("ca", "ce"), True),  # backward, what it has made: behind it
    ],
)
def test_a_segment_whose_input_is_written_over_is_not_made_again(third, last, is_possible):
    layout = layout_of(
        Stub(Phase.FORWARD, "", "a"),
        Stub(Phase.FORWARD, "a", "bc"),  # the segment: c is its own
        Stub(Phase.FORWARD, *third),
        Stub(Phase.BACKWARD, *last),
    )
    found = recompute.recompute(layout, [recompute.Segment("layer_1", range(1, 2))])
    names = [function.visit.function for function in found.functions]
    again = ["forward_1_recomputed"] if is_possible else []
    assert names == ["forward_0", "forward_1", "forward_2", *again, "backward_3"]
    assert found.dropped == ({"c"} if is_possible else set())


def test_what_is_not_kept_leaves_its_place_to_others():
    """c is computed by kernels 1 and 3; in between d may reuse c's memory, but not b's."""
    kernels = [
        Stub(Phase.FORWARD, "", "a"),
        made := Stub(Phase.FORWARD, "a", "bc"),
        Stub(Phase.FORWARD, "ab", "d"),
        made,
        Stub(Phase.BACKWARD, "bc", "e"),
    ]
    found = {
        lifetime.array.name: lifetime for lifetime in lifetimes(kernels, [], set(), frozenset("c"))
    }
    assert found["c"].spans == ((1, 1), (3, 4))
    assert found["b"].spans == ((1, 4),)
    assert not found["c"].overlaps(found["d"])
    assert found["b"].overlaps(found["d"])
    offsets = {buffer.name: buffer.offset_bytes for buffer in place(list(found.values()), 0)[0]}
    assert offsets["d"] == offsets["c"] != offsets["b"]


def test_weights_of_what_is_made_again_come_once_more(tmp_path):
    """Forward 0 to 4; then per block up again, down, up backward; the last block is kept."""

    def simple(x):
        up = nn.Dense(16 * D, "gelu", name="up")(x)
        return x + nn.Dense(D, name="down")(up)

    optimizer = nn.SGD(0.1)
    whole = compiled(tmp_path, network(simple, optimizer))
    small = system_of(whole.plan.arena_bytes * 2 // 3)
    again = compiled(tmp_path, network(simple, optimizer), system=small, recompute=True)
    before, after = ({layer.name: layer for layer in each.plan.layers} for each in (whole, again))
    assert again.plan.recomputed == tuple(f"h/{number}" for number in range(BLOCKS))
    for number in range(BLOCKS):
        up, down = f"h/{number}/up", f"h/{number}/down"
        assert after[up].loads == before[up].loads + 1
        assert after[down].loads == before[down].loads
        assert after[up].backward_flops - before[up].backward_flops == before[up].forward_flops
        assert after[down].backward_flops == before[down].backward_flops
    assert again.plan.estimate.samples_per_sec < whole.plan.estimate.samples_per_sec
    assert_same(trained(again), trained(whole))
