"""The estimator's part of cs_input_analyzer: what it measures of its input pipeline."""

import logging
import os
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from time import perf_counter

import numpy as np

from csrun.data import Dataset
from csrun.data.analysis.measurements import Measurements, Point
from csrun.data.batches import Delivery
from csrun.data.measure import Consume, measure
from csrun.data.stages import StageClock
from csrun.executable import Executable, Plan
from csrun.mode import ExecutionMode
from csrun.records import messages
from csrun.runtime.batches import fill
from csrun.runtime.cpu import CpuMachine
from csrun.runtime.state import initialize
from csrun.runtime.wire.ring import slot_bytes

POINT_S = 1.5  # how long a point is measured
WAFER_S = 1.0
ORDER_STEPS = 1  # an order: a large model's step may take long
RISES = 1.1  # by how much the rate must rise for more workers to be tried
MOST_WORKERS = 64  # on a machine with fewer CPUs than that; else as many as twice its CPUs

log = logging.getLogger("csrun")
Make = Callable[[], Dataset]


def measure_pipeline(
    executable: Executable, make: Make, seed: int, suggestions: tuple[str, ...], folder: Path
) -> None:
    """Measure the pipeline that `make` makes, and leave the result in the analysis's folder."""
    plan, cpus = executable.plan, sorted(os.sched_getaffinity(0))
    dataset = make()
    wafer = _wafer_rate(executable, dataset, seed)
    log.info(messages.wafer_measured(wafer))
    Measurements(
        batch_size=plan.batch_size,
        sample_bytes=slot_bytes(plan.inputs) // plan.batch_size,
        machine_cpus=len(cpus),
        estimated_samples_per_s=plan.estimate.samples_per_sec,
        wafer_samples_per_s=wafer,
        streaming=plan.mode is ExecutionMode.WEIGHT_STREAMING,
        parallel=dataset.parallel,
        points=tuple(_points(make, _into_slot(plan), cpus, dataset.parallel)),
        suggestions=suggestions,
    ).write(folder)


def _points(make: Make, consume: Consume, cpus: list[int], parallel: bool) -> Iterator[Point]:
    """One worker, two, four, … with one CPU each, as long as more of them bring more; and the same
    with more CPUs each, if the pipeline uses them.
    """
    for cpus_each in _doubling(len(cpus) if parallel else 1):
        before = 0.0
        for tasks in _doubling(max(MOST_WORKERS, 2 * len(cpus)) // cpus_each):
            point = measure(make, consume, tasks, cpus_each, POINT_S, cpus)
            log.info(messages.point_measured(tasks, cpus_each, point.samples_per_s))
            yield point
            if point.samples_per_s < RISES * before:
                break
            before = point.samples_per_s


def _doubling(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]


def _into_slot(plan: Plan) -> Consume:
    """Puts batches where a streamer does, in the memory of a slot."""
    slot = tuple(np.empty(spec.shape, spec.dtype) for spec in plan.inputs)
    numbers = count()

    def consume(delivery: Delivery, clock: StageClock) -> int:
        return fill(slot, delivery, plan.inputs, next(numbers), clock)

    return consume


def _wafer_rate(executable: Executable, dataset: Dataset, seed: int) -> float:
    """Samples a second of this machine's executor, with a batch that lies ready."""
    batch = next(dataset.batches())
    machine = CpuMachine(executable, Dataset.from_batches(repeat(batch)), seed, 0)
    initialize(machine.plan, machine.state, seed)
    machine.run(0, 1)
    step, samples, computed_s, started = 1, 0, 0.0, perf_counter()
    while perf_counter() - started < WAFER_S:
        done = machine.run(step, ORDER_STEPS)
        step, samples = step + done.done, samples + done.samples
        computed_s += done.seconds - sum(use.wait_s for use in done.input)
        if done.bad_loss is not None:  # one batch again and again is no training
            initialize(machine.plan, machine.state, seed)
    return samples / computed_s
