"""Store and arena shared by several programs: offsets of their parts, and refused programs."""

import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from support.programs import ArrayData, options_of
from support.running import (
    NETWORK,
    PART,
    PIPELINED,
    SAMPLES,
    SETTINGS,
    STEPS,
    STREAMING,
    begun,
    compiled,
    copied,
    data,
    losses_of,
    opened,
    validation,
)

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.executable import tensors_of
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Feed
from csrun.runtime.wire.messages import StepOrder


def forked(
    folder,
    run_mode,
    mode,
    kernels=("body", "side", "head"),
    units=8,
    group_bytes=1 << 20,
    most=None,
):
    """Network with a side branch, or parts of it."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (16, 12), "float32")
        labels = tracer.input("labels", (16,), "int32")
        losses = []
        with nn.scope("body"):
            x = nn.Dense(units, "relu")(x)
        for name in kernels[1:]:
            with nn.scope(name):
                losses.append(nn.softmax_cross_entropy(nn.Dense(5)(x), labels))
        loss = losses[0] + losses[1] if len(losses) > 1 else losses[0]
        module = tracer.finish(run_mode, loss, nn.SGD(0.05, 0.9).minimize(loss), [])
    options = options_of(mode, run_mode, group_bytes=group_bytes, max_group_bytes=most)
    return compile_model(module, folder, options).executable


def flat_data(count=STEPS):
    return ArrayData([(x.reshape(16, 12), y) for x, y in NETWORK.batches(count)])


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize("way", ["in process", "memory 1", "tcp 1"])
def test_a_program_of_some_of_the_parameters_finds_them_where_they_lie_apart(tmp_path, mode, way):
    """Body, side and head are a group each; the evaluation has the first and the last."""
    train = forked(tmp_path, RunMode.TRAIN, mode)
    evaluation = forked(tmp_path, RunMode.EVAL, mode, ("body", "head"))
    random = np.random.default_rng(5)
    first = {p.name: random.standard_normal(p.shape).astype("f") / 4 for p in train.plan.parameters}
    datasets = [flat_data(), flat_data(SAMPLES)]
    with opened(way, tmp_path, train, datasets, first) as machine:
        evaluate = machine.load(evaluation, Feed(datasets[1], 1))
        assert len(evaluation.plan.groups) == 1
        assert len(evaluate.plan.groups) == 2
        for step in range(0, STEPS, PART):
            machine.run(StepOrder(step, PART))
            evaluate.begin()
            alone = begun(evaluation, flat_data(SAMPLES), copied(machine))
            assert losses_of(evaluate, 0, SAMPLES) == losses_of(alone, 0, SAMPLES)


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
@pytest.mark.parametrize(
    ("way", "most", "units"),
    [
        ("in process", (64, None), 8),
        ("in process", (None, 64), 8),
        ("tcp 1", (64, 128), 8),
        ("tcp 1", (200, 600), 24),  # by columns, as there are more of them
    ],
)
def test_a_matrix_that_one_of_them_cuts_is_there_for_the_other(tmp_path, mode, way, most, units):
    """Sharding is a property of each program; the store has all rows contiguously."""
    train, evaluation = (
        forked(tmp_path, run_mode, mode, units=units, most=bound)
        for run_mode, bound in zip((RunMode.TRAIN, RunMode.EVAL), most, strict=True)
    )
    names = [{p.name for p in executable.plan.parameters} for executable in (train, evaluation)]
    assert names[0] != names[1]
    uncut = forked(tmp_path, RunMode.EVAL, mode, units=units)
    datasets = [flat_data(), flat_data(SAMPLES)]
    random = np.random.default_rng(5)
    tensors = tensors_of(train.plan)
    first = {p.name: random.standard_normal(p.shape).astype("f") / 4 for p in tensors}
    with opened(way, tmp_path, train, datasets, first) as machine:
        evaluate = machine.load(evaluation, Feed(datasets[1], 1))
        machine.run(StepOrder(0, PART))
        evaluate.begin()
        alone = begun(uncut, flat_data(SAMPLES), copied(machine))
        found, expected = losses_of(evaluate, 0, SAMPLES), losses_of(alone, 0, SAMPLES)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


REFUSED = {
    "another mode": (RunMode.EVAL, STREAMING, {}, "mode is WEIGHT_STREAMING"),
    "another shape": (
        RunMode.EVAL,
        PIPELINED,
        {"units": 9},
        r"kernel is float32\[12, 9\]",
    ),
    "no such parameter": (
        RunMode.EVAL,
        PIPELINED,
        {"kernels": ("body", "other")},
        "other/dense/kernel is not in the run's store",
    ),
    "a training of parameters that lie apart": (
        RunMode.TRAIN,
        PIPELINED,
        {"kernels": ("body", "head")},
        "body/dense/kernel, head/dense/kernel are not adjacent",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_program_that_the_store_does_not_fit_is_refused(tmp_path, case):
    run_mode, mode, others, message = REFUSED[case]
    machine = begun(forked(tmp_path, RunMode.TRAIN, PIPELINED), flat_data(), {})
    with pytest.raises(CsrunError, match=message):
        machine.load(forked(tmp_path, run_mode, mode, **others), Feed(flat_data()))


def test_a_matrix_that_lies_transposed_is_so_for_all(tmp_path):
    cut = forked(tmp_path, RunMode.TRAIN, PIPELINED, units=24, most=64)
    uncut = forked(tmp_path, RunMode.EVAL, PIPELINED, units=24)
    machine = begun(cut, flat_data(), {})
    with pytest.raises(CsrunError, match="is stored transposed in only one of the run's programs"):
        machine.load(uncut, Feed(flat_data()))


def test_a_training_does_not_come_after_an_evaluation(tmp_path):
    machine = begun(forked(tmp_path, RunMode.EVAL, PIPELINED), flat_data(), {})
    with pytest.raises(CsrunError, match="no optimizer state because an evaluation came first"):
        machine.load(forked(tmp_path, RunMode.TRAIN, PIPELINED), Feed(flat_data()))


def test_a_program_must_fit_on_the_wafer_beside_the_store(tmp_path):
    programs = compiled(replace(NETWORK, batch=4), tmp_path, PIPELINED)
    train, evaluation = programs.train.plan, programs.evaluate.plan
    needed = evaluation.arena_bytes + train.store.nbytes - evaluation.store.nbytes
    for room in (needed, needed - 1):
        machine = CpuMachine(programs.train, data(NETWORK), SETTINGS, 0, sram_bytes=room)
        if room == needed:
            machine.load(programs.evaluate, Feed(data(NETWORK)))
            continue
        with pytest.raises(CsrunError, match=f"{needed:,} bytes .* {room:,}: lower its batch_size"):
            machine.load(programs.evaluate, Feed(data(NETWORK)))


@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_the_wafers_one_arena_is_as_large_as_the_largest_program_needs(tmp_path, mode):
    """Size reported by the kernel; a program for a short batch needs no more."""
    programs = compiled(NETWORK, tmp_path, mode)
    short = replace(NETWORK, batch=5).compile(tmp_path, mode, 1)
    datasets = [data(NETWORK), validation(NETWORK)]
    sizes = []
    with opened("memory 1", tmp_path, programs.train, datasets, {}) as machine:
        loaded = [machine, machine.load(short, machine)]
        sizes.append(arena_sizes())
        loaded.append(machine.load(programs.evaluate, Feed(datasets[1], 1)))
        sizes.append(arena_sizes())
        needed = [program.plan.arena_bytes for program in loaded]
        assert machine.arena_bytes == max(needed) == needed[2] > needed[0] > needed[1]
    assert sizes == [{needed[0]}, {needed[2]}]


def arena_sizes():
    """Sizes of all arenas that this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            if "csrun-arena" in os.readlink(f"/proc/self/fd/{number}"):
                found.add(os.fstat(int(number)).st_size)
    return found
