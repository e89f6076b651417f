"""Probe of the first batches of a data set: times of its stages."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import fmean, median
from time import perf_counter

from csrun.advice.input_fn_report.pipeline import Pipeline
from csrun.advice.measurements import Measurements
from csrun.advice.numbers import spread
from csrun.data.dataset import Dataset
from csrun.data.input_operators import Level, StageClock, StageTime

PROBED_BATCHES = 8
PROBED_S = 0.05
READ_AGAIN = ("from_arrays", "from_files")  # only for sources that restart for each reader

Typical = Callable[[list[float]], float]


@dataclass(frozen=True)
class Probe:
    """Times per batch: of each stage, and between batches; empty if not measured.

    spreads: of the stages' times in seconds, where known.
    """

    costs: dict[str, StageTime] = field(default_factory=dict)
    batch_s: float = 0.0
    spreads: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of_worker(measured: Measurements) -> "Probe":
        """Return the times of the least disturbed measured worker."""
        point, size = measured.least_disturbed, measured.batch_size
        return Probe(
            {cost.name: StageTime(size * cost.wall_s, size * cost.cpu_s) for cost in point.stages},
            point.tasks * size / point.samples_per_s,
            {cost.name: size * cost.spread_s for cost in point.stages},
        )


def probe(dataset: Dataset) -> Probe:
    """Time a few batches of a data set that each reader can restart.

    The first batch has been read for its shapes; if it took long, no more are read. Errors are
    ignored and left to the run, which names the step.
    """
    if not dataset.indexable and dataset.operators[0].name not in READ_AGAIN:
        return Probe()
    if sum(time.wall_s for time in dict(dataset.clock.stages).values()) > PROBED_S:
        return _of_first(dataset)
    own = replace(dataset)  # with a separate clock and opening
    with suppress(Exception):
        return _timed(own)
    return Probe()


def _timed(dataset: Dataset) -> Probe:
    """Time the batches after the first, which opens files, or a slow or single first one."""
    begun = perf_counter()
    batches = dataset.batches()
    next(batches)
    marks = [_mark(dataset.clock)]
    if marks[0].at - begun <= PROBED_S:
        for _ in islice(batches, PROBED_BATCHES - 1):
            marks.append(_mark(dataset.clock))
            if marks[-1].at - begun > PROBED_S:
                break
    if len(marks) == 1:
        return _of_first(dataset)
    # a streamed stage may work on several batches at once; elsewhere an outlier is a stall
    typical: Typical = median if dataset.indexable else fmean
    steps = list(pairwise(marks))
    names = list(dict(dataset.clock.stages))
    costs = {name: _typical_time(name, steps, typical) for name in names}
    between_s = typical([after.at - before.at for before, after in steps])
    if dataset.parallel:  # threads work on several batches at once
        return Probe(costs, between_s)
    return Probe(costs, between_s, {name: _spread_s(name, steps) for name in names})


def _of_first(dataset: Dataset) -> Probe:
    """Time the first batch; the time to fill a window is shared by its batches."""
    costs = dict(_mark(dataset.clock).stages)
    size = Pipeline(dataset.operators).batch_size or 1
    for at, operator in enumerate(dataset.operators):
        window = operator.options.get("window")
        if window is None or operator.level is Level.BATCH:
            continue
        share = size / (size + window)
        for below in {operator.stage for operator in dataset.operators[:at]} & costs.keys():
            cost = costs[below]
            costs[below] = StageTime(cost.wall_s * share, cost.cpu_s * share)
    total_s = sum(cost.wall_s for cost in costs.values())
    return Probe(costs, 0.0 if dataset.parallel else total_s)


@dataclass(frozen=True)
class _StageTimes:
    """Times of the stages at a moment."""

    at: float
    stages: dict[str, StageTime]


def _mark(clock: StageClock) -> _StageTimes:
    stages = {name: replace(time) for name, time in dict(clock.stages).items()}
    return _StageTimes(perf_counter(), stages)


def _spread_s(name: str, steps: list[tuple[_StageTimes, _StageTimes]]) -> float:
    none = StageTime()
    ends = [[mark.stages.get(name, none).wall_s for mark in step] for step in steps]
    return spread([after_s - before_s for before_s, after_s in ends])


def _typical_time(
    name: str, steps: list[tuple[_StageTimes, _StageTimes]], typical: Typical
) -> StageTime:
    none = StageTime()
    pairs = [
        (before.stages.get(name, none), after.stages.get(name, none)) for before, after in steps
    ]
    return StageTime(
        typical([after.wall_s - before.wall_s for before, after in pairs]),
        typical([after.cpu_s - before.cpu_s for before, after in pairs]),
    )
