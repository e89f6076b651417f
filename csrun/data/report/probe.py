"""A look at the first batches of a data set: what each of its stages takes."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import fmean, median
from time import perf_counter

from csrun.data.dataset import Dataset
from csrun.data.stages import StageClock, StageTime

PROBED_BATCHES = 8
PROBED_S = 0.05
LONGEST_BATCH_S = 0.5  # one that takes longer is not read once more just to be timed
READ_AGAIN = ("from_arrays", "from_files")  # sources that begin anew for each reader

Typical = Callable[[list[float]], float]


@dataclass(frozen=True)
class Probe:
    """Time of a batch: of each stage, and from one batch to the next; nothing when not measured."""

    costs: dict[str, StageTime] = field(default_factory=dict)
    batch_s: float = 0.0


def probe(dataset: Dataset) -> Probe:
    """Time a few batches of a data set whose readers take nothing from each other.

    Those who asked for its shapes have read the first one: how long that took says whether more are
    read. What goes wrong meanwhile is left to the run, which names the step.
    """
    source = dataset.operators[0].name
    first_s = sum(stage.wall_s for stage in dataset.clock.stages.values())
    longest_s = LONGEST_BATCH_S if dataset.indexable else PROBED_S  # a stream fills windows first
    if source not in READ_AGAIN or first_s > longest_s:
        return Probe()
    own = replace(dataset)  # with a clock of its own, and an opening
    # a stage of a stream may work for several batches at once; elsewhere an outlier is a stall
    typical = median if dataset.indexable else fmean
    with suppress(Exception):
        return _timed(own.batches(), own.clock, typical)
    return Probe()


def _timed(batches: Iterator[object], clock: StageClock, typical: Typical) -> Probe:
    """The batches after the first, which opens files; that one when it takes long, or is alone."""
    begun = perf_counter()
    next(batches)
    marks = [_mark(clock)]
    if marks[0].at - begun <= PROBED_S:
        for _ in islice(batches, PROBED_BATCHES - 1):
            marks.append(_mark(clock))
            if marks[-1].at - begun > PROBED_S:
                break
    if len(marks) == 1:
        return Probe(clock.stages, marks[0].at - begun)
    steps = list(pairwise(marks))
    costs = {name: _typical_time(name, steps, typical) for name in clock.stages}
    return Probe(costs, typical([after.at - before.at for before, after in steps]))


@dataclass(frozen=True)
class _Mark:
    """What the stages had taken at a moment."""

    at: float
    stages: dict[str, StageTime]


def _mark(clock: StageClock) -> _Mark:
    stages = {name: replace(time) for name, time in dict(clock.stages).items()}
    return _Mark(perf_counter(), stages)


def _typical_time(name: str, steps: list[tuple[_Mark, _Mark]], typical: Typical) -> StageTime:
    none = StageTime()
    pairs = [
        (before.stages.get(name, none), after.stages.get(name, none)) for before, after in steps
    ]
    return StageTime(
        typical([after.wall_s - before.wall_s for before, after in pairs]),
        typical([after.cpu_s - before.cpu_s for before, after in pairs]),
    )
