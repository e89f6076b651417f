"""Estimate of a run from its compile: memory by kind and role, and step time on this machine.

Memory follows from the plan. The step is run on this machine if there is enough memory. Otherwise
its time is the longest of three: floating-point operations at the rates of large matrix products,
bytes that are copied, and disk traffic.

The tasks of a job share the machine's CPUs: a step takes at least the CPU time of all of them,
divided by the CPUs.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from time import perf_counter, process_time

import psutil

from csrun.advice.machine_speeds import MachineSpeeds, forms_of, speeds_here
from csrun.advice.wafer_rate import wafer_rate
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler.report.limit import Limit
from csrun.context import Role
from csrun.data import Dataset
from csrun.executable import Executable, Plan
from csrun.launch.task_memory import PRIVATE_BYTES, SHARED_BYTES
from csrun.records.run_estimate import ProductRate, RoleMemory, RunEstimate
from csrun.runtime.store.backing import disk_of
from csrun.runtime.store.disk_traffic import disk_traffic
from csrun.runtime.wire.ring import ring_slots_for, slot_bytes
from csrun.site.site import System

MEASURED_SHARE = 0.8  # of free memory that a step may take to be run here
INPUT_S = 0.3  # duration of the measurement of a batch's CPU time
#: Time of all else in a step, of what its FLOPs take in float32 products. Faster products leave it
#: as it is: at GPT-2's width it was 0.25 with float32 products, 0.23 to 0.25 with AMX-BF16.
ALL_ELSE = 0.25
# A pipelined model's layers take whole PEs, in rectangles: 1.05 to 1.15 of their bytes in tests.
FLOOR_PLAN_SHARE = 1.2


@dataclass(frozen=True)
class EstimatedInput:
    """Data set of a run.

    nbytes: memory that it takes in a task, with its first batch. batch_cpu_s: CPU time of a batch
    """

    dataset: Dataset
    nbytes: int
    batch_cpu_s: float

    @classmethod
    def made_by(cls, make: Callable[[], Dataset]) -> "EstimatedInput":
        """Make the data set and its first batch."""
        process = psutil.Process()
        before = process.memory_info().rss
        dataset = make()
        batches = dataset.batches()
        held = dataset.repeat_batch(next(batches))
        nbytes = max(0, process.memory_info().rss - before)
        return cls(held, nbytes, _cpu_s_of(batches))


def _cpu_s_of(batches: Iterator[object]) -> float:
    """CPU time of making a batch, on average of those of a short while; 0 where no other comes."""
    began_s, until_s, count = process_time(), perf_counter() + INPUT_S, 0
    while perf_counter() < until_s and next(batches, None) is not None:
        count += 1
    return (process_time() - began_s) / count if count else 0.0


@dataclass(frozen=True)
class LocalStep:
    """A step on this machine.

    exclusive_s: its time with all CPUs for itself. spread: of that time. cpu_s: CPU time of all
    roles. cpus: number that they share. is_measured: by running it
    """

    exclusive_s: float
    spread: float
    cpu_s: float
    cpus: int
    is_measured: bool

    @property
    def seconds(self) -> float:
        """Time of a step of a job on this machine."""
        return max(self.exclusive_s, self.cpu_s / self.cpus)


def step_here(
    executable: Executable,
    given: EstimatedInput,
    settings: RunSettings,
    speeds: MachineSpeeds,
    disk_s: float,
) -> LocalStep:
    """Measure a step, or compute it where its memory is not free.

    disk_s: time of the disk that the store is on
    """
    plan, cpus = executable.plan, len(os.sched_getaffinity(0))
    # A streamer makes a batch, and copies it into its ring.
    cpu_s = given.batch_cpu_s + slot_bytes(plan.inputs) / speeds.copy_bytes_per_s
    free = MEASURED_SHARE * psutil.virtual_memory().available
    if plan.arena_bytes + sum(store_memory(plan).values()) <= free:
        measured = wafer_rate(executable, given.dataset, settings)
        exclusive_s = plan.batch_size / measured.samples_per_s
        spread = measured.spread / measured.samples_per_s
        return LocalStep(exclusive_s, spread, cpu_s + measured.cpu_s, cpus, True)
    exclusive_s = computed_step_s(executable, speeds, disk_s)
    cpu_s += cpus * products_s(executable, speeds) + passing_bytes(plan) / speeds.copy_bytes_per_s
    return LocalStep(exclusive_s, 0.0, cpu_s, cpus, False)


def estimate_of(
    executable: Executable,
    system: System,
    given: EstimatedInput,
    settings: RunSettings,
    streamers: int,
    max_steps: int | None,
) -> RunEstimate:
    """Return the estimate of a compiled run; its step is measured where memory allows."""
    # Before measurements, whose memory this process may keep.
    chief, available = _chief_bytes(), psutil.virtual_memory().available
    plan = executable.plan
    wafer, on_disk = wafer_memory(plan), _memory_of_disk_store(plan, settings)
    speeds, disk_rate = speeds_here(executable)
    limit = Limit.of(plan, system)
    disk_s = disk_step_s(plan, on_disk, disk_rate)
    step = step_here(executable, given, settings, speeds, disk_s)
    return RunEstimate(
        mode=str(plan.mode),
        batch_size=plan.batch_size,
        systems=plan.systems,
        parameters=sum(prod(p.shape) for p in plan.parameters),
        layers=len(plan.layers),
        sram_bytes=system.sram_bytes,
        wafer=wafer,
        store=store_memory(plan),
        store_on_disk=on_disk,
        host=tuple(host_memory(plan, chief, given.nbytes, streamers, on_disk)),
        host_available_bytes=available,
        checkpoint_bytes=checkpoint_bytes(plan) if plan.run_mode is RunMode.TRAIN else 0,
        checkpoint_s=checkpoint_bytes(plan) / disk_rate if disk_rate else None,
        step_s=step.seconds,
        step_spread=step.spread,
        is_measured=step.is_measured,
        products=products_of(executable, speeds),
        step_cpu_s=step.cpu_s,
        cpus=step.cpus,
        system_samples_per_s=plan.estimate.samples_per_sec,
        largest_batch=largest_batch(plan, system, wafer),
        least_sram_bytes=least_sram_bytes(plan),
        max_steps=max_steps,
        limits=limit.sentence,
        system_rates=limit.rates,
    )


def _memory_of_disk_store(plan: Plan, settings: RunSettings) -> int | None:
    """Bytes in memory of a store on disk; None for one in memory."""
    disk = None if plan.store_in_arena else disk_of(plan, settings)
    return None if disk is None else disk.memory_bytes


def _chief_bytes() -> int:
    """Private memory of the chief, which this process is as far as its script is concerned."""
    return max(PRIVATE_BYTES[Role.CHIEF], psutil.Process().memory_full_info().uss - SHARED_BYTES)


def checkpoint_bytes(plan: Plan) -> int:
    """Return the bytes of weights and optimizer state."""
    store = store_memory(plan)
    return store.get("weights", 0) + store.get("optimizer state", 0)


def store_memory(plan: Plan) -> dict[str, int]:
    """Return the bytes of the training's state by kind, without kinds that it does not have."""
    weights = sum(group.nbytes for group in plan.groups)
    optimizer = len(plan.store.slots) * weights
    words = 0 if plan.store.words_offset is None else weights // 2
    kinds = {
        "weights": weights,
        "16-bit weights": words,
        "gradients": plan.store.nbytes - weights - words - optimizer,
        "optimizer state": optimizer,
    }
    return {kind: nbytes for kind, nbytes in kinds.items() if nbytes > 0}


def wafer_memory(plan: Plan) -> dict[str, int]:
    """Return the bytes of one system's memory by kind."""
    slots = [
        (group.slot_offset_bytes, group.slot_offset_bytes + group.sent_bytes)
        for group in plan.groups
        if group.slot_offset_bytes is not None
    ]
    copies = max(end for _, end in slots) - min(start for start, _ in slots) if slots else 0
    state = store_memory(plan) if plan.store_in_arena else {}
    kinds = {**state, "copies of weights": copies}
    kinds["activations"] = plan.arena_bytes - sum(kinds.values())
    return {kind: nbytes for kind, nbytes in kinds.items() if nbytes > 0}


def host_memory(
    plan: Plan, chief: int, data_bytes: int, streamers: int, on_disk: int | None
) -> Iterator[RoleMemory]:
    """Yield the memory of a job's tasks by role.

    chief: its private memory. data_bytes: of the data set in one streamer. on_disk: bytes in memory
    of a store on disk, None for one in memory
    """
    yield RoleMemory("all", 1, SHARED_BYTES, "Python and csrun, shared")
    yield RoleMemory("chief", 1, chief, "the script, compiler and data set")
    if not plan.store_in_arena:
        nbytes = plan.store.nbytes if on_disk is None else on_disk
        held = "the store" if on_disk is None else "the part of the store that is in memory"
        yield RoleMemory("MemoryX", 1, PRIVATE_BYTES[Role.MEMORYX] + nbytes, held)
    yield RoleMemory(
        "wafer", plan.systems, PRIVATE_BYTES[Role.WAFER] + plan.arena_bytes, "the wafer's memory"
    )
    ring = ring_slots_for(streamers, plan.inputs) * slot_bytes(plan.inputs)
    yield RoleMemory(
        "streamer", streamers, PRIVATE_BYTES[Role.STREAMER] + data_bytes + ring, "data set and ring"
    )


def largest_batch(plan: Plan, system: System, wafer: Mapping[str, int]) -> int | None:
    """Return the samples that fit the systems at once, as activations grow with the batch."""
    if "activations" not in wafer:
        return None
    at_once = plan.batch_size // plan.systems // plan.micro_batches
    room = system.sram_bytes - plan.arena_bytes + wafer["activations"]
    return plan.systems * max(0, room * at_once // wafer["activations"])


def least_sram_bytes(plan: Plan) -> int:
    """Return the memory of a system that the run fits as it is compiled."""
    if plan.mode is ExecutionMode.WEIGHT_STREAMING:
        return plan.arena_bytes
    return int(FLOOR_PLAN_SHARE * plan.arena_bytes)


def computed_step_s(executable: Executable, speeds: MachineSpeeds, disk_s: float = 0.0) -> float:
    """Return the time of a step that cannot be run here, by its operations, copies and disk.

    disk_s: time of the disk that the store is on
    """
    copies_s = passing_bytes(executable.plan) / speeds.copy_bytes_per_s
    return max(products_s(executable, speeds), copies_s, disk_s)


def disk_step_s(plan: Plan, on_disk: int | None, bytes_per_s: float | None) -> float:
    """Return the time in which the store's disk reads and writes the bytes of a step.

    on_disk: bytes in memory of a store on disk, None for one in memory.
    bytes_per_s: speed of the disk, None if unknown.
    """
    if on_disk is None or not bytes_per_s:
        return 0.0
    traffic = disk_traffic(plan, on_disk)
    return (traffic.read_bytes + traffic.written_bytes) / bytes_per_s


def products_of(executable: Executable, speeds: MachineSpeeds) -> tuple[ProductRate, ...]:
    """Return the rates of the program's products, and their shares; those of float32 are last."""
    return tuple(
        ProductRate(form, share, speeds.flops_per_s[form])
        for form, share in forms_of(executable).items()
    )


def products_s(executable: Executable, speeds: MachineSpeeds) -> float:
    """Return the time of a step's floating-point operations on all CPUs, and of all else."""
    plan, products = executable.plan, products_of(executable, speeds)
    flops = sum(layer.forward_flops + layer.backward_flops for layer in plan.layers)
    *_, float32 = products
    flop_s = sum(each.share / each.flops_per_s for each in products)
    return plan.parts * flops * (flop_s + ALL_ELSE / float32.flops_per_s)


def passing_bytes(plan: Plan) -> float:
    """Return the bytes that a step reads and writes of the store."""
    store = store_memory(plan)
    words = store.get("16-bit weights", 0)
    sent = words / store["weights"] or 1.0  # without words, weights are narrowed when they are sent
    reads = sent * sum(layer.loads * layer.weight_bytes for layer in plan.layers)
    update = 2 * store.get("optimizer state", 0) + 2 * store["weights"] + words  # in and out
    return reads + update
