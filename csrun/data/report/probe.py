"""A look at the first batches of a data set: what each of its stages takes."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter

from csrun.data.dataset import Dataset
from csrun.data.stages import StageClock, StageTime

PROBED_BATCHES = 8
PROBED_S = 0.05
LONGEST_BATCH_S = 0.5  # one that takes longer is not read once more just to be timed
READ_AGAIN = ("from_arrays", "from_files")  # sources that begin anew for each reader


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
    with suppress(Exception):
        return _timed(own.batches(), own.clock)
    return Probe()


def _timed(batches: Iterator[object], clock: StageClock) -> Probe:
    """The batches after the first, which opens files; that one when it takes long, or is alone."""
    begun = perf_counter()
    next(batches)
    opened = perf_counter()
    if opened - begun > PROBED_S:
        return Probe(clock.stages, opened - begun)
    before = {name: replace(time) for name, time in clock.stages.items()}
    count = 0
    for _ in islice(batches, PROBED_BATCHES - 1):
        count += 1
        if perf_counter() - begun > PROBED_S:
            break
    if not count:
        return Probe(clock.stages, opened - begun)
    return Probe(_spent(before, clock.stages, count), (perf_counter() - opened) / count)


def _spent(
    before: dict[str, StageTime], after: dict[str, StageTime], batches: int
) -> dict[str, StageTime]:
    """The stages' time a batch."""
    none = StageTime()
    return {
        name: StageTime(
            (time.wall_s - before.get(name, none).wall_s) / batches,
            (time.cpu_s - before.get(name, none).cpu_s) / batches,
        )
        for name, time in after.items()
    }
