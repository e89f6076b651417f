"""A look at the first batches of a data set: what each of its stages takes."""

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
from csrun.data.operators import Level, StageClock, StageTime

PROBED_BATCHES = 8
PROBED_S = 0.05
READ_AGAIN = ("from_arrays", "from_files")  # below streams that begin anew for each reader

Typical = Callable[[list[float]], float]


@dataclass(frozen=True)
class Probe:
    """Time of a batch: of each stage, and from one batch to the next; nothing when not measured.

    spreads: of the stages' times, in seconds; of those that are known.
    """

    costs: dict[str, StageTime] = field(default_factory=dict)
    batch_s: float = 0.0
    spreads: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of_worker(measured: Measurements) -> "Probe":
        """What a measured worker, the least disturbed one, took."""
        point, size = measured.least_disturbed, measured.batch_size
        return Probe(
            {cost.name: StageTime(size * cost.wall_s, size * cost.cpu_s) for cost in point.stages},
            point.tasks * size / point.samples_per_s,
            {cost.name: size * cost.spread_s for cost in point.stages},
        )


def probe(dataset: Dataset) -> Probe:
    """Time a few batches of a data set whose readers take nothing from each other.

    Those who asked for its shapes have read the first one: when that took long, no more are read.
    What goes wrong meanwhile is left to the run, which names the step.
    """
    if not dataset.indexable and dataset.operators[0].name not in READ_AGAIN:
        return Probe()
    if sum(time.wall_s for time in dict(dataset.clock.stages).values()) > PROBED_S:
        return _of_first(dataset)
    own = replace(dataset)  # with a clock of its own, and an opening
    with suppress(Exception):
        return _timed(own)
    return Probe()


def _timed(dataset: Dataset) -> Probe:
    """The batches after the first, which opens files; that one when it takes long, or is alone."""
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
    # a stage of a stream may work for several batches at once; elsewhere an outlier is a stall
    typical: Typical = median if dataset.indexable else fmean
    steps = list(pairwise(marks))
    names = list(dict(dataset.clock.stages))
    costs = {name: _typical_time(name, steps, typical) for name in names}
    between_s = typical([after.at - before.at for before, after in steps])
    if dataset.parallel:  # threads work for several batches at once
        return Probe(costs, between_s)
    return Probe(costs, between_s, {name: _spread_s(name, steps) for name in names})


def _of_first(dataset: Dataset) -> Probe:
    """What the first batch took. What filled a window with it is shared by the window's batches."""
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
class _Mark:
    """What the stages had taken at a moment."""

    at: float
    stages: dict[str, StageTime]


def _mark(clock: StageClock) -> _Mark:
    stages = {name: replace(time) for name, time in dict(clock.stages).items()}
    return _Mark(perf_counter(), stages)


def _spread_s(name: str, steps: list[tuple[_Mark, _Mark]]) -> float:
    none = StageTime()
    ends = [[mark.stages.get(name, none).wall_s for mark in step] for step in steps]
    return spread([after_s - before_s for before_s, after_s in ends])


def _typical_time(name: str, steps: list[tuple[_Mark, _Mark]], typical: Typical) -> StageTime:
    none = StageTime()
    pairs = [
        (before.stages.get(name, none), after.stages.get(name, none)) for before, after in steps
    ]
    return StageTime(
        typical([after.wall_s - before.wall_s for before, after in pairs]),
        typical([after.cpu_s - before.cpu_s for before, after in pairs]),
    )
