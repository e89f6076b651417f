"""Measurements of cs_input_analyzer inside the estimator."""

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from csrun.advice.feed import ForkedRings
from csrun.advice.measure import mean, measure
from csrun.advice.measurements import Measurements, MeasureRequest, Point
from csrun.advice.numbers import several, with_spread
from csrun.advice.other_processes import BackgroundLoad
from csrun.advice.wafer_rate import wafer_rate
from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.executable import Executable
from csrun.runtime.wire.ring import slot_bytes

POINT_S = 0.8  # duration of each measurement
LEAST_POINTS = 3
RISES = 1.05  # gain required to try more workers
MOST_WORKERS = 64  # on a small machine; else twice the number of CPUs

log = logging.getLogger("csrun")
Make = Callable[[], Dataset]
Hands = Callable[[int], ForkedRings]


def measure_pipeline(
    executable: Executable, make: Make, settings: RunSettings, folder: Path
) -> Measurements:
    """Measure the pipeline returned by `make`, for the analysis of this folder."""
    plan, cpus = executable.plan, sorted(os.sched_getaffinity(0))

    def endless() -> Dataset:
        return make().repeat()  # as there may be more workers than batches in a pass

    dataset = make()
    others = BackgroundLoad()
    measured = wafer_rate(executable, dataset, settings)
    wafer = measured.samples_per_s
    beside_wafer = others.use()
    shown = with_spread(wafer, measured.spread)
    log.info(f"Measured: the wafer on this machine consumes {shown} samples/s")
    hands = partial(ForkedRings, plan.inputs, settings)
    asked = MeasureRequest.read(folder)
    enough = asked.target_samples_per_s if asked else max(wafer, plan.estimate.samples_per_sec)
    return Measurements(
        batch_size=plan.batch_size,
        sample_bytes=slot_bytes(plan.inputs) // plan.batch_size,
        machine_cpus=len(cpus),
        estimated_samples_per_s=plan.estimate.samples_per_sec,
        wafer_samples_per_s=wafer,
        streaming=plan.is_streaming,
        parallel=dataset.parallel,
        points=tuple(_points(endless, hands, cpus, enough, dataset)),
        most_streamers=dataset.most_streamers,
        replayed=dataset.replayed,
        wafer_spread=measured.spread,
        beside_wafer=beside_wafer,
    )


def _points(
    make: Make, hands: Hands, cpus: list[int], enough: float, dataset: Dataset
) -> Iterator[Point]:
    """Measure 1, 2, 3, … workers with one CPU each, while more of them help and less than twice the
    target is reached; then with more CPUs each, if the pipeline uses them.

    All are measured twice, the second time in reverse order, so that a temporary disturbance does
    not look like a law.
    """
    most = dataset.most_streamers or max(MOST_WORKERS, 2 * len(cpus))
    for cpus_each in _steps(len(cpus)) if dataset.parallel else [1]:
        first: list[Point] = []
        for tasks in _steps(min(most, max(MOST_WORKERS, 2 * len(cpus)) // cpus_each)):
            # without the rate: the report has that of both times
            log.info(f"Measuring {several(tasks, 'task')}, {several(cpus_each, 'CPU')} each")
            first.append(measure(make, hands, tasks, cpus_each, POINT_S, cpus))
            if _is_enough([point.samples_per_s for point in first], enough):
                break
        second = [
            measure(make, hands, point.tasks, cpus_each, POINT_S, cpus) for point in reversed(first)
        ]
        yield from map(mean, first, reversed(second))


def _is_enough(rates: list[float], enough: float) -> bool:
    """True if more workers would add no information; the first two are always measured."""
    *before, last = rates
    return len(rates) >= LEAST_POINTS and (last > 2 * enough or last < RISES * max(before))


def _steps(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … up to `most`."""
    steps = {2**k * factor // 2 for k in range(1, most.bit_length() + 1) for factor in (2, 3)}
    return sorted(step for step in {1, *steps} if step <= most)
