"""A look at the first batches of a data set: what each of its stages takes."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from csrun.data.stages import StageClock, StageTime

if TYPE_CHECKING:
    from csrun.data.dataset import Dataset

PROBED_BATCHES = 8
PROBED_S = 0.05  # a compile does not wait longer, but for a batch that itself takes longer
READ_AGAIN = ("from_arrays", "from_files")  # sources that begin anew for each reader


@dataclass(frozen=True)
class Probe:
    """Time of a batch: of each stage, and from one batch to the next; nothing when not measured."""

    costs: dict[str, StageTime] = field(default_factory=dict)
    batch_s: float = 0.0


def probe(dataset: "Dataset") -> Probe:
    """Read a few batches of a data set whose readers take nothing from each other.

    What goes wrong meanwhile is left to the run, which says it with its step.
    """
    if not dataset.operators or dataset.operators[0].name not in READ_AGAIN:
        return Probe()
    clock = StageClock()
    with suppress(Exception), closing(dataset.batches(0, 1, clock=clock)) as reader:
        return _timed(reader, clock)
    return Probe()


def _timed(reader: Iterator[object], clock: StageClock) -> Probe:
    """The batches after the first, which opens files and fills windows; it alone if it is slow."""
    begun = perf_counter()
    next(reader)
    first_s = perf_counter() - begun
    if first_s > PROBED_S:
        return Probe(_per_batch(clock, {}, 1), first_s)
    before = {name: StageTime(time.wall_s, time.cpu_s) for name, time in clock.stages.items()}
    count = 0
    while count < PROBED_BATCHES - 1 and perf_counter() - begun < PROBED_S:
        if next(reader, None) is None:
            break
        count += 1
    if not count:
        return Probe(_per_batch(clock, {}, 1), first_s)
    return Probe(_per_batch(clock, before, count), (perf_counter() - begun - first_s) / count)


def _per_batch(clock: StageClock, before: dict[str, StageTime], count: int) -> dict[str, StageTime]:
    none = StageTime()
    return {
        name: StageTime(
            (time.wall_s - before.get(name, none).wall_s) / count,
            (time.cpu_s - before.get(name, none).cpu_s) / count,
        )
        for name, time in clock.stages.items()
    }
