"""Estimates of a run: memory by formula, the largest batch by compiling."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.programs import SYSTEM, Network, options_of, system_of

from csrun.advice import estimation
from csrun.advice.estimation import (
    ALL_ELSE,
    EstimatedInput,
    LocalStep,
    computed_step_s,
    disk_step_s,
    host_memory,
    largest_batch,
    least_sram_bytes,
    products_of,
    step_here,
    store_memory,
    wafer_memory,
)
from csrun.advice.machine_speeds import MachineSpeeds
from csrun.base.half_formats import storage_format
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.compiler import TooLargeError, compile_model
from csrun.data import Dataset
from csrun.executable import Plan
from csrun.runtime.store.residency import least_bytes

NETWORK = Network(sizes=(200, 400, 100, 10), batch=64)
WEIGHTS = sum(4 * (a * b + b) for a, b in pairwise(NETWORK.sizes))
ROUNDING = 64 * 2 * len(NETWORK.sizes)  # of arrays to whole lines of cache


def planned(folder: Path, mode: ExecutionMode, **others: object) -> Plan:
    return NETWORK.compile(folder, mode, **others).plan


@pytest.mark.parametrize("mode", ExecutionMode)
def test_state_is_weights_gradients_and_momentum(tmp_path: Path, mode: ExecutionMode) -> None:
    plan = planned(tmp_path, mode)
    state = store_memory(plan)
    assert sum(state.values()) == plan.store.nbytes
    assert WEIGHTS <= state["weights"] <= WEIGHTS + ROUNDING
    assert state["optimizer state"] == state["weights"]
    assert 0 < state["gradients"] <= state["weights"] + ROUNDING
    wafer = wafer_memory(plan)
    assert sum(wafer.values()) == plan.arena_bytes
    has_state = mode is ExecutionMode.PIPELINED
    assert ("optimizer state" in wafer) == has_state
    assert ("copies of weights" in wafer) != has_state
    activations = 4 * NETWORK.batch * sum(NETWORK.sizes)
    assert activations < wafer["activations"] < 4 * activations


def test_in_mixed_precision_copies_are_words(tmp_path: Path) -> None:
    mode = ExecutionMode.WEIGHT_STREAMING
    whole = planned(tmp_path, mode)
    halves = replace(NETWORK, storage=storage_format("mixed_bfloat16")).compile(tmp_path, mode).plan
    state = store_memory(halves)
    assert sum(state.values()) == halves.store.nbytes
    assert state["weights"] == store_memory(whole)["weights"]
    assert "16-bit weights" not in state  # which are narrowed when they are sent
    pipelined = replace(NETWORK, storage=storage_format("mixed_bfloat16")).compile(
        tmp_path, ExecutionMode.PIPELINED
    )
    assert 2 * store_memory(pipelined.plan)["16-bit weights"] == state["weights"]
    words, floats = (wafer_memory(plan)["copies of weights"] for plan in (halves, whole))
    assert words == pytest.approx(floats / 2, rel=0.01)


def test_tasks_of_a_job_hold_arena_store_and_rings(tmp_path: Path) -> None:
    plan = planned(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    held = {each.role: each for each in host_memory(plan, 60_000_000, 10_000_000, 3, None)}
    assert held["wafer"].nbytes > plan.arena_bytes
    assert held["MemoryX"].nbytes > plan.store.nbytes
    assert held["chief"].nbytes == 60_000_000
    assert held["streamer"].tasks == 3
    assert held["streamer"].nbytes > 10_000_000 + 4 * NETWORK.batch * NETWORK.sizes[0]
    on_disk = {each.role: each for each in host_memory(plan, 0, 0, 1, 1000)}
    assert held["MemoryX"].nbytes - on_disk["MemoryX"].nbytes == plan.store.nbytes - 1000
    pipelined = planned(tmp_path, ExecutionMode.PIPELINED)
    assert "MemoryX" not in {each.role for each in host_memory(pipelined, 0, 0, 1, None)}


def test_the_largest_batch_fits_and_a_larger_one_does_not(tmp_path: Path) -> None:
    system = system_of(1 << 20)
    plan = planned(tmp_path, ExecutionMode.WEIGHT_STREAMING, system=system)
    most = largest_batch(plan, system, wafer_memory(plan))
    assert most is not None
    assert most > NETWORK.batch
    options = options_of(ExecutionMode.WEIGHT_STREAMING, system=system)
    for batch, fits in ((int(0.98 * most), True), (int(1.02 * most), False)):
        module = Network(sizes=NETWORK.sizes, batch=batch).trace()
        if fits:
            compile_model(module, tmp_path, options)
        else:
            with pytest.raises(TooLargeError):
                compile_model(module, tmp_path, options)
    assert largest_batch(plan, SYSTEM, wafer_memory(plan)) > 1000 * most


@pytest.mark.parametrize("kb_per_core", [1, 4, 48])
@pytest.mark.parametrize("mode", ExecutionMode)
def test_the_run_fits_the_smallest_wafer(
    tmp_path: Path, mode: ExecutionMode, kb_per_core: int
) -> None:
    cores = -(-least_sram_bytes(planned(tmp_path, mode)) // (1024 * kb_per_core))
    width = int(cores**0.5)
    smallest = msgspec.structs.replace(
        SYSTEM,
        fabric_width=width,
        fabric_height=-(-cores // width),
        usable_cores=width * -(-cores // width),
        sram_kb_per_core=kb_per_core,
    )
    assert planned(tmp_path, mode, system=smallest).micro_batches == 1


def test_a_pipelined_run_does_not_fit_a_much_smaller_wafer(tmp_path: Path) -> None:
    plan = planned(tmp_path, ExecutionMode.PIPELINED)
    with pytest.raises(TooLargeError):
        planned(tmp_path, ExecutionMode.PIPELINED, system=system_of(int(0.8 * plan.arena_bytes)))


def test_a_step_that_cannot_run_takes_its_operations_or_its_disk(tmp_path: Path) -> None:
    executable = NETWORK.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    plan = executable.plan
    products = [2 * NETWORK.batch * a * b for a, b in pairwise(NETWORK.sizes)]
    flops = 3 * sum(products) - products[0]  # no gradient of the input
    speeds = MachineSpeeds(1e12, {"blas": 1e9})
    in_memory = computed_step_s(executable, speeds)
    assert in_memory == pytest.approx((1 + ALL_ELSE) * flops / 1e9, rel=0.02)
    assert computed_step_s(executable, speeds, in_memory / 2) == in_memory
    assert computed_step_s(executable, speeds, 2 * in_memory) == 2 * in_memory
    passing = 6 * store_memory(plan)["weights"]  # two loads; in and out of weights and momentum
    slow = computed_step_s(executable, MachineSpeeds(1e3, {"blas": 1e15}))
    assert slow == pytest.approx(passing / 1e3, rel=0.2)


def test_the_disk_moves_what_does_not_stay_in_memory(tmp_path: Path) -> None:
    network = replace(NETWORK, sizes=(400,) * 12 + (10,))
    plan = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1).plan
    least, weights = least_bytes(plan), store_memory(plan)["weights"]
    # two loads, in and out of momentum, out of weights
    assert disk_step_s(plan, least, 1e6) == pytest.approx(5 * weights / 1e6, rel=0.1)
    assert disk_step_s(plan, plan.store.nbytes, 1e6) == 0
    assert disk_step_s(plan, None, 1e6) == disk_step_s(plan, least, None) == 0


def test_products_of_bfloat16_are_computed_at_their_own_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four fifths of the operations at 4e9 FLOP/s, all others at 1e9."""
    executable = NETWORK.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    speeds = MachineSpeeds(1e15, {"blas": 1e9, "own": 1e9, "amx_bf16": 4e9})
    whole = computed_step_s(executable, speeds)
    monkeypatch.setattr(estimation, "forms_of", lambda program: {"amx_bf16": 0.8, "own": 0.2})
    assert computed_step_s(executable, speeds) == pytest.approx(
        (0.4 + ALL_ELSE) / (1 + ALL_ELSE) * whole
    )
    shares = [(each.products, each.share) for each in products_of(executable, speeds)]
    assert shares == [("amx_bf16", 0.8), ("own", 0.2)]


def test_tasks_share_the_cpus_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LocalStep(0.4, 0.0, cpu_s=0.6, cpus=2, is_measured=True).seconds == 0.4
    assert LocalStep(0.4, 0.0, cpu_s=1.2, cpus=2, is_measured=True).seconds == 0.6

    def busy(x: Any, y: Any) -> Any:
        until_s = process_time() + 0.02
        while process_time() < until_s:
            pass
        return x, y

    x = np.zeros((4 * NETWORK.batch, NETWORK.sizes[0]), np.float32)
    labels = np.zeros(len(x), np.int32)
    given = EstimatedInput.made_by(
        lambda: Dataset.from_arrays(x, labels).batch(NETWORK.batch).map(busy)
    )
    assert given.batch_cpu_s == pytest.approx(0.02, rel=0.5)
    monkeypatch.setattr(estimation, "MEASURED_SHARE", 0.0)
    executable = NETWORK.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    speeds = MachineSpeeds(1e12, {"blas": 1e9})
    found = step_here(executable, given, RunSettings(), speeds, 0.0)
    assert found.exclusive_s == computed_step_s(executable, speeds)
    work_s = found.exclusive_s * found.cpus + given.batch_cpu_s  # copies take no time
    assert found.seconds == pytest.approx(work_s / found.cpus, rel=1e-3)


def test_memory_is_that_before_the_measurement_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [100]

    def measure(*given: object) -> LocalStep:
        used.append(30)
        return LocalStep(0.4, 0.0, cpu_s=0.6, cpus=2, is_measured=True)

    monkeypatch.setattr(estimation, "step_here", measure)
    speeds = MachineSpeeds(1e12, {"blas": 1e9})
    monkeypatch.setattr(estimation, "speeds_here", lambda program: (speeds, None))
    monkeypatch.setattr(estimation, "_chief_bytes", lambda: sum(used))
    monkeypatch.setattr(
        estimation.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000 - sum(used))
    )
    executable = NETWORK.compile(tmp_path, ExecutionMode.PIPELINED)
    given = EstimatedInput(Dataset.from_arrays(np.zeros(1)), 0, 0.0)
    found = estimation.estimate_of(executable, SYSTEM, given, RunSettings(), 1, None)
    assert used == [100, 30]
    assert {each.role: each.nbytes for each in found.host}["chief"] == 100
    assert found.host_available_bytes == 900
