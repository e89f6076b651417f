"""Update of a large group by two threads, one per half: the bits of a single function."""

import re

import numpy as np
import pytest
from support.programs import Network

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.compiler.emit import update_code
from csrun.compiler.lair import flat
from csrun.executable import Runtime, StepState, flat_views, machine_code, threads
from csrun.executable.threads import threads_of_updates
from csrun.runtime.step.update_threads import UpdateThreads

pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

OPTIMIZERS = [
    nn.SGD(0.1),
    nn.AdamW(0.01, weight_decay=0.1, clip_norm=1.0),
    nn.Lamb(0.01),
    nn.RMSProp(0.01),
]
TILE = 1000
SIZES = (60, 90, 70, 5)  # of the first two layers alone are several tiles


def updated(folder, optimizer, processors, kernels="numpy"):
    """State after two steps of random gradients with this many CPUs, and the program."""
    network = Network(SIZES, optimizer=optimizer)
    executable = network.compile(folder, ExecutionMode.WEIGHT_STREAMING, kernels=kernels)
    store = np.zeros(executable.plan.store.nbytes, np.uint8)
    flat = flat_views(executable.plan, store)
    cpus = UpdateThreads(processors)
    program = cpus.bind(executable, store, Runtime(1))
    random = np.random.default_rng(3)
    for array in flat.values():
        array[...] = random.uniform(0.5, 1, array.shape)
    for index in range(2):
        step = StepState(index=index, clip=0.5)
        for group in executable.plan.deliveries:
            gradients = flat[f"gradients/{group}"]
            gradients[...] = random.standard_normal(gradients.shape)
            program.update[group](step)
    cpus.close()
    found = {name: value.copy() for name, value in flat.items() if "gradients" not in name}
    return found, executable.program


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_halves_give_the_bits_of_the_whole(tmp_path, monkeypatch, optimizer, processors):
    monkeypatch.setattr(update_code, "HALVED_FROM", 1 << 30)
    expected, program = updated(tmp_path / "whole", optimizer, 1)
    assert "back_0" not in program
    monkeypatch.setattr(update_code, "HALVED_FROM", 4 * TILE)
    monkeypatch.setattr(flat, "TILE_ELEMENTS", TILE)
    found, program = updated(tmp_path / "halves", optimizer, processors)
    assert "{0: (front_0, back_0)" in program
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.skipif(not machine_code.is_supported(), reason="machine code needs llvmlite")
@pytest.mark.parametrize("processors", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_more_threads_share_machine_code_with_the_same_bits(
    tmp_path, monkeypatch, optimizer, processors
):
    expected, _ = updated(tmp_path, optimizer, 1, "llvm")
    monkeypatch.setattr(threads, "LEAST_UPDATED", 16)
    plan = Network(SIZES).compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, kernels="llvm").plan
    assert threads_of_updates(plan, processors) == (1 if processors == 2 else processors)
    found, _ = updated(tmp_path, optimizer, processors, "llvm")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_both_halves_have_as_many_elements(tmp_path, monkeypatch):
    """Up to a tile: 60 * 90 weights, of the first of two groups, and 90 biases, padded to 16."""
    monkeypatch.setattr(update_code, "HALVED_FROM", 4 * TILE)
    monkeypatch.setattr(flat, "TILE_ELEMENTS", TILE)
    _, program = updated(tmp_path, nn.SGD(0.1), 1)
    (front,), (back,) = (
        re.findall(rf'weights_0_{n} = v\["weights/0"\]\[(\d+):(\d+)\]', program) for n in (0, 1)
    )
    assert (front[0], front[1]) == ("0", back[0])
    total = 60 * 90 + 8 + 96
    assert int(back[1]) == total
    assert int(front[1]) == -(-total // 2 // TILE) * TILE


def test_a_half_that_fails_fails_the_update(tmp_path):
    network = Network((700, 700, 5))
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    program = executable.update_program(
        np.zeros(executable.plan.store.nbytes, np.uint8), Runtime(1)
    )
    front, back = program.halves[0]

    def failing(step):
        raise RuntimeError("half")

    for halves in ((failing, back), (front, failing)):
        program.halves[0] = halves
        cpus = UpdateThreads(2)
        with pytest.raises(RuntimeError, match="half"):
            cpus.over(program).update[0](StepState())
        cpus.close()
