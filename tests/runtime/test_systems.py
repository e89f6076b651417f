"""Several CS systems that share each batch: bits for any order of arrival, and sums."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from support.programs import SYSTEM, ArrayData, Network, TiedNetwork, options_of
from support.running import SETTINGS, assert_same, copied, losses_of
from support.systems import compiled, machine_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import CompileError, compile_model
from csrun.executable.shards import StoreShards
from csrun.nn.tracer import Tracer
from csrun.records import checkpoints, tensor_files
from csrun.runtime.chief.machine import Feed
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.roles import memoryx
from csrun.runtime.store import backing
from csrun.runtime.store.residency import least_bytes, store_bytes
from csrun.runtime.store.store_mailbox import MemoryxLink
from csrun.runtime.wire.messages import StepOrder

NETWORK = Network(sizes=(12, 40, 30, 5), dropout=0.3, optimizer=nn.AdamW(0.01))
TIED = TiedNetwork((30, 12, 12, 12, 30), dropout=0.2, optimizer=nn.Adam(0.01, clip_norm=0.5))
STEPS = 8


@dataclass
class Trained:
    losses: list[float]
    state: dict[str, np.ndarray]
    logits: np.ndarray  # of the last step


def trained(network, folder, systems, batches=None, steps=STEPS, micro_batches=1, servers=1):
    batches = network.batches(steps) if batches is None else batches
    executable = compiled(network, folder, systems, micro_batches=micro_batches)
    first = network.parameters()
    with machine_of(executable, folder, ArrayData(batches), first, servers=servers) as machine:
        done = machine.run(StepOrder(0, steps))
        assert done.done == steps
        logits = machine.result(steps - 1, steps - 1).outputs["logits"]
        return Trained(machine.losses(steps), copied(machine), logits)


class Turns:
    """Force the order in which wafers deliver each group, another one each time.

    A wafer is identified by its thread's name.
    """

    def __init__(self, monkeypatch, orders):
        self._orders = [[f"wafer cs{n}" for n in order] for order in orders]
        self._delivered, self._changed = {}, threading.Condition()
        deliver = MemoryxLink.deliver

        def in_turn(end, group, step):
            name = threading.current_thread().name
            with self._changed:
                assert self._changed.wait_for(lambda: self._is_next(name), 120)
                deliver(end, group, step)
                self._delivered[name] = self._delivered.get(name, 0) + 1
                self._changed.notify_all()

        monkeypatch.setattr(MemoryxLink, "deliver", in_turn)

    def _is_next(self, name):
        number = self._delivered.get(name, 0)
        order = self._orders[number % len(self._orders)]
        before = order[: order.index(name)]
        return all(self._delivered.get(other, 0) > number for other in before)


ORDERS = {
    2: [[[0, 1]], [[1, 0]], [[0, 1], [1, 0], [1, 0]]],
    4: [[[0, 1, 2, 3]], [[3, 2, 1, 0]], [[2, 0, 3, 1], [1, 3, 0, 2], [3, 0, 1, 2]]],
}


@pytest.mark.parametrize("network", [NETWORK, TIED], ids=["dense", "tied, clipped"])
@pytest.mark.parametrize(("systems", "servers"), [(2, 1), (4, 1), (4, 3), (2, 5)])
def test_the_order_of_arrival_decides_nothing(tmp_path, monkeypatch, network, systems, servers):
    """Nor does the number of MemoryX tasks; with five, some have nothing to do."""
    expected = trained(network, tmp_path / "free", systems)
    for number, orders in enumerate(ORDERS[systems]):
        with monkeypatch.context() as patch:
            Turns(patch, orders)
            found = trained(network, tmp_path / str(number), systems, servers=servers)
        assert_same_training(found, expected)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("kind", [Network, TiedNetwork])
@pytest.mark.parametrize(("systems", "micro_batches"), [(2, 1), (4, 1), (2, 2)])
def test_one_step_is_that_of_one_system(tmp_path, kind, systems, micro_batches, clip_norm):
    """Including dropout, ignored labels and padding; gradients are the updates of SGD."""
    sizes = {Network: (12, 40, 30, 5), TiedNetwork: (30, 12, 12, 12, 30)}[kind]
    optimizer = nn.SGD(1.0, clip_norm=clip_norm)
    network = kind(sizes, dropout=0.3, optimizer=optimizer)
    ((x, labels),) = network.batches(1)
    labels[[2, 3, 9]] = IGNORE_INDEX
    batches = [(x[:14], labels[:14])]  # of 16
    one = trained(network, tmp_path / "1", 1, batches, 1)
    several = trained(network, tmp_path / "several", systems, batches, 1, micro_batches)
    assert several.losses == pytest.approx(one.losses, rel=1e-6)
    np.testing.assert_allclose(several.logits, one.logits, rtol=1e-5, atol=1e-6)
    first = network.parameters()
    gradients = {name: first[name] - one.state[name] for name in first}
    off = [one.state[name] - several.state[name] for name in first]
    norm = np.sqrt(sum(np.sum(g.astype("f8") ** 2) for g in gradients.values()))
    assert np.sqrt(sum(np.sum(d.astype("f8") ** 2) for d in off)) < 1e-5 * norm


@pytest.mark.parametrize(
    ("part", "micro_batches", "servers", "clip_norm"),
    [(0, 1, 1, None), (1, 1, 2, None), (3, 1, 2, 0.5), (2, 2, 1, 0.5)],
)
def test_a_part_of_the_loss_that_is_no_number_stops_all_before_the_update(
    tmp_path, part, micro_batches, servers, clip_norm
):
    network = replace(NETWORK, dropout=0.0, optimizer=nn.AdamW(0.01, clip_norm=clip_norm))
    batches = network.batches(4)
    batches[2][0][4 * part] = np.inf
    executable = compiled(network, tmp_path, 4, micro_batches=micro_batches)
    before = trained(network, tmp_path / "before", 4, batches[:2], 2, micro_batches)
    first = network.parameters()
    with machine_of(executable, tmp_path, ArrayData(batches), first, servers=servers) as machine:
        done = machine.run(StepOrder(0, 4))
        assert done.done == 2
        assert done.bad_loss is not None
        assert not np.isfinite(done.bad_loss)
        for name, array in copied(machine).items():
            np.testing.assert_array_equal(array, before.state[name], err_msg=name)


def test_an_evaluation_of_several_systems_has_the_sums_of_all(tmp_path):
    batches = NETWORK.batches(3)
    batches[-1] = tuple(array[:5] for array in batches[-1])
    found = []
    for systems in (1, 4):
        executable = compiled(NETWORK, tmp_path, systems, RunMode.EVAL)
        folder = tmp_path / str(systems)
        with machine_of(executable, folder, ArrayData(batches), NETWORK.parameters()) as machine:
            done = machine.run(StepOrder(0, 4))
            assert (done.done, done.samples, done.finished) == (3, 37, True)
            found.append([machine.result(step, step) for step in range(3)])
    for one, several in zip(*found, strict=True):
        assert several.loss_sum == pytest.approx(one.loss_sum, rel=1e-6)
        assert (several.rows, several.count) == (one.rows, one.count)
        np.testing.assert_array_equal(several.outputs["prediction"], one.outputs["prediction"])


def test_a_program_that_is_loaded_anew_takes_the_place_of_the_former_one(tmp_path):
    """In all wafers, on the first one's batches."""
    expected = trained(NETWORK, tmp_path / "one", 2)
    executable, losses = compiled(NETWORK, tmp_path, 2), []
    batches, state = NETWORK.batches(STEPS), NETWORK.parameters()
    with machine_of(executable, tmp_path / "anew", ArrayData(batches), state) as machine:
        program = machine
        for first in range(0, STEPS, 2):
            assert program.run(StepOrder(first, 2)).done == 2
            losses += program.losses(2)
            former, program = program, machine.load(executable, program)
            machine.unload(former)
        state = copied(machine)
    assert losses == expected.losses
    for name, array in expected.state.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


def test_what_is_of_the_batch_as_a_whole_is_refused(tmp_path):
    with Tracer("float32") as tracer:
        x = nn.BatchNorm()(nn.Dense(4)(tracer.input("features", (8, 6), "float32")))
        loss = nn.softmax_cross_entropy(x, tracer.input("labels", (8,), "int32"))
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    options = options_of(ExecutionMode.WEIGHT_STREAMING, systems=2)
    with pytest.raises(CompileError, match="on 2 systems: set num_csx to 1"):
        compile_model(module, tmp_path, options)


def trained_on(machine, steps=STEPS):
    """Losses of a machine's steps, and its final state."""
    machine.run(StepOrder(0, steps))
    return Trained(machine.losses(steps), copied(machine), np.empty(0))


def assert_same_training(found, expected):
    assert found.losses == expected.losses
    assert_same(expected.state, found.state)


@pytest.mark.parametrize(
    ("network", "servers"), [(NETWORK, 1), (TIED, 2)], ids=["dense", "tied, clipped, two tasks"]
)
def test_an_evaluation_beside_the_training_changes_nothing(tmp_path, network, servers):
    """Its losses are those of a run with the same weights without training."""
    expected = trained(network, tmp_path / "alone", 2)
    train = compiled(network, tmp_path / "train", 2)
    evaluation = compiled(network, tmp_path / "evaluation", 2, RunMode.EVAL)
    others, losses, found = network.batches(STEPS + 3)[STEPS:], [], []
    batches, first = network.batches(STEPS), network.parameters()
    data = [ArrayData(batches), ArrayData(others)]
    with machine_of(train, tmp_path, data, first, servers=servers) as machine:
        evaluate = machine.load(evaluation, Feed(ArrayData(others), 1))
        for step in (0, STEPS // 2):
            losses += losses_of(machine, step, STEPS // 2)
            if step:
                evaluate.begin()
            found.append((copied(machine), losses_of(evaluate, 0, 3)))
        state = copied(machine)
    assert losses == pytest.approx(expected.losses, rel=1e-12)
    assert_same(expected.state, state)
    for number, (weights, evaluated) in enumerate(found):
        with machine_of(evaluation, tmp_path / f"{number}", ArrayData(others), weights) as machine:
            assert losses_of(machine, 0, 3) == evaluated


@pytest.mark.parametrize(
    ("network", "servers"), [(NETWORK, 2), (TIED, 1)], ids=["dense, two tasks", "tied, clipped"]
)
def test_a_checkpoint_beside_the_next_step_holds_the_state_of_its_own(
    tmp_path, monkeypatch, network, servers
):
    """Each tensor takes longer to copy than a step."""
    executable, batches = compiled(network, tmp_path / "compiled", 2), network.batches(STEPS)
    expected = []
    with machine_of(executable, tmp_path, ArrayData(batches), network.parameters()) as machine:
        for step in range(STEPS):
            machine.run(StepOrder(step, 1))
            expected.append(copied(machine))
    crc32 = tensor_files.zlib.crc32

    def slowly(*arguments):
        time.sleep(0.01)
        return crc32(*arguments)

    monkeypatch.setattr(tensor_files, "zlib", SimpleNamespace(crc32=slowly))
    folder = tmp_path / "model_dir"
    folder.mkdir()
    options = LoopOptions(folder, 0, STEPS, 100, 1, STEPS + 1, {}, 0.0, SETTINGS)
    first, beside = network.parameters(), tmp_path / "beside"
    with machine_of(executable, beside, ArrayData(batches), first, servers=servers) as machine:
        Training(machine, options, None, lambda progress: None).run()
    for step, state in enumerate(expected, 1):
        found = checkpoints.open_checkpoint(folder / checkpoints.name_of(step))
        assert_same(state, dict(found.read(found.manifest.tensors)))


DEEP = Network(sizes=(96,) * 10 + (5,), optimizer=nn.AdamW(0.01))
DEEP_TIED = TiedNetwork((128, *(96,) * 9, 128), optimizer=nn.Adam(0.01, clip_norm=0.5))


@pytest.mark.parametrize(("micro_batches", "servers"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("network", [DEEP, DEEP_TIED], ids=["deep", "tied, clipped"])
def test_a_store_on_disk_has_the_bits_of_one_in_memory(tmp_path, network, micro_batches, servers):
    """With the least memory."""
    folders = [f for f in (tmp_path, Path(__file__).parent) if not backing._memory_kind(f)]
    if not folders:
        pytest.skip("no folder on a disk")
    executable = compiled(network, tmp_path, 2, micro_batches=micro_batches)
    plan, shards = executable.plan, StoreShards.of(executable.plan, servers)
    least = sum(least_bytes(plan, shards.own(plan, server)) for server in range(servers))
    assert least < store_bytes(plan)
    settings = msgspec.structs.replace(
        SETTINGS, weight_store="disk", weight_store_dir=str(folders[0]), weight_store_memory=least
    )
    batches, first, found = network.batches(3), network.parameters(), []
    for name, each, of in (("memory", SETTINGS, 1), ("disk", settings, servers)):
        more = {"settings": each, "servers": of}
        with machine_of(executable, tmp_path / name, ArrayData(batches), first, **more) as machine:
            found.append(trained_on(machine, 3))
    assert_same_training(found[1], found[0])


def test_two_threads_that_update_have_the_bits_of_one(tmp_path, monkeypatch):
    network, found = replace(NETWORK, sizes=(64, 800, 600, 5)), []
    executable = compiled(network, tmp_path, 2)
    assert "def front_" in executable.program
    batches, first = network.batches(3), network.parameters()
    for threads in (1, 2):
        monkeypatch.setattr(memoryx, "thread_count", lambda count=threads: count)
        with machine_of(executable, tmp_path / f"{threads}", ArrayData(batches), first) as machine:
            found.append(trained_on(machine, 3))
    assert_same_training(found[1], found[0])


def small_system(nbytes):
    """System with at least this much memory."""
    rows = nbytes // 1024
    return msgspec.structs.replace(
        SYSTEM, fabric_width=1, fabric_height=rows, usable_cores=rows, sram_kb_per_core=1
    )


def deep(folder, **options):
    """Blocks whose activations need most of the wafer's memory."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (16, 8), "float32")
        labels = tracer.input("labels", (16,), "int32")
        for number in range(3):
            with nn.scope("h"), nn.scope(number):
                up = nn.Dropout(0.2)(nn.Dense(128, "gelu")(x))
                x = x + nn.Dense(8, name="down")(up)
        loss = nn.softmax_cross_entropy(nn.Dense(5)(x), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.AdamW(0.01).minimize(loss), [])
    more = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=1, systems=2, **options)
    return compile_model(module, folder, more).executable


def test_a_forward_pass_computed_again_has_the_same_bits(tmp_path):
    whole = deep(tmp_path / "whole")
    small = small_system(whole.plan.arena_bytes * 2 // 3)
    again = deep(tmp_path / "again", system=small, recompute=True)
    assert again.plan.recomputed
    random = np.random.default_rng(4)
    batches = [
        (random.standard_normal((32, 8)).astype("f"), random.integers(0, 5, 32).astype("i"))
        for _ in range(3)
    ]
    first = {p.name: random.standard_normal(p.shape) / 4 for p in whole.plan.parameters}
    found = []
    for name, executable in (("whole", whole), ("again", again)):
        with machine_of(executable, tmp_path / name, ArrayData(batches), first) as machine:
            found.append(trained_on(machine, 3))
    assert_same_training(found[1], found[0])


def test_statistics_by_minibatch_are_those_of_as_many_micro_batches(tmp_path):
    """With an incomplete batch, whose parts are weighted by their samples."""
    found = []
    random = np.random.default_rng(4)
    features = random.standard_normal((3, 16, 6)) + 1
    labels = random.integers(0, 4, (3, 16)).astype("i")
    batches = [(features[0], labels[0]), (features[1][:11], labels[1][:11])]
    for name, split in (("systems", {"systems": 2}), ("parts", {"micro_batches": 2})):
        with Tracer("float64") as tracer:
            x = nn.BatchNorm(by_minibatch=True)(tracer.input("features", (8, 6), "float64"))
            logits = nn.Dense(4)(x)
            loss = nn.softmax_cross_entropy(logits, tracer.input("labels", (8,), "int32"))
            train = nn.SGD(0.1, 0.9).minimize(loss)
            module = tracer.finish(RunMode.TRAIN, loss, train, [])
        options = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=1, **split)
        executable = compile_model(module, tmp_path / name, options).executable
        first = {p.name: np.full(p.shape, 0.5) for p in executable.plan.parameters}
        with machine_of(executable, tmp_path / name, ArrayData(batches), first) as machine:
            found.append(trained_on(machine, 2))
    systems, parts = found
    assert systems.losses == pytest.approx(parts.losses, rel=1e-12)
    for name, array in parts.state.items():
        np.testing.assert_allclose(systems.state[name], array, 1e-11, 1e-12, err_msg=name)
    assert np.abs(systems.state["batch_norm/running_mean"] - 0.5).max() > 0.05
