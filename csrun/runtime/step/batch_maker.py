"""Makes a run's batches, in a streamer and in the process of the steps: next, fill, check, meter.

The data set gives batches by their numbers and writes into the arrays that it is handed; here it is
decided which number comes next, whether a batch is one that the program takes, and what it cost.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import perf_counter_ns

from csrun.data import Dataset
from csrun.data.delivery import COPY_STAGE, Delivery, Kind
from csrun.data.stage_clock import StageClock, unheard
from csrun.executable import PADDING_LABEL
from csrun.executable.bind import Batch
from csrun.runtime.step.batch_check import (
    BatchName,
    Inputs,
    require_finite,
    require_labels,
    rows_of_fitting,
)
from csrun.runtime.wire.messages import RunSettings
from csrun.runtime.wire.ring import NO_PRODUCTION, UNKNOWN_STAGE, Production


@dataclass(frozen=True)
class Numbers:
    """The batches first, first + stride, … of a run; those from `last` on are not wanted."""

    first: int = 0
    stride: int = 1
    last: int | None = None


class BatchMaker:
    """Makes batches for a program's inputs, one after the other.

    number: of the batch that comes next. who: makes them, e.g. `this streamer`.
    """

    def __init__(
        self,
        dataset: Dataset,
        inputs: Inputs,
        numbers: Numbers,
        settings: RunSettings,
        who: str,
    ) -> None:
        self.number = numbers.first
        self.meter = Meter(dataset.clock, who)
        self._inputs = inputs
        self._fitting: tuple[Kind, ...] | None = None  # of a whole batch that was found to fit
        self._numbers = numbers
        self._settings = settings
        self._clock = dataset.clock
        self._deliveries = dataset.deliveries(numbers.first, numbers.stride)

    def make(self, slot: Batch) -> int | None:
        """Make the next batch in a slot's arrays: its valid rows, None at the end.

        Raises: CsrunError for a batch that the program does not take, or that it is told to refuse
        """
        last = self._numbers.last
        if last is not None and self.number >= last:
            return None
        with self.meter.producing(self.number):
            delivery = next(self._deliveries, None)
            rows = None if delivery is None else self._fill(slot, delivery)
        self.number += self._numbers.stride
        return rows

    def _fill(self, slot: Batch, delivery: Delivery) -> int:
        """Put a batch into a slot's arrays, checked, and an incomplete one filled up: its rows."""
        inputs, kinds, rows = self._inputs, delivery.kinds, self._inputs[0].shape[0]
        name = BatchName(self.number, rows, delivery)
        heads = slot
        if kinds != self._fitting:  # nearly all batches are alike: a comparison is all it costs
            rows = rows_of_fitting(kinds, inputs, name)
            heads = tuple(array[:rows] for array in slot)
            self._fitting = kinds if rows == len(slot[0]) else None
        given = delivery.write(heads, self._clock)
        with self._clock.timed(COPY_STAGE):
            require_labels(given, inputs, name)
            if rows < inputs[0].shape[0]:
                for array, spec in zip(slot, inputs, strict=True):
                    array[rows:] = PADDING_LABEL if spec.classes is not None else 0
            if self._settings.check_numerics:
                require_finite(heads, inputs, name)
        return rows


class Meter:
    """What making batches costs, for the headers of their slots; numbers the stages.

    `cost` is that of the last batch; `who` makes them, e.g. `this streamer`.
    """

    def __init__(self, clock: StageClock, who: str) -> None:
        self.cost = NO_PRODUCTION
        self._who = who
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._lock = Lock()
        self._batches, self._spent_ns = 0, 0

    @contextmanager
    def shown_by(self, enter: Callable[[int], None]) -> Iterator[None]:
        """Let `enter` hear of each stage that a batch comes into, by its number, meanwhile."""
        self._clock.entered = lambda stage: enter(self._number(stage))
        try:
            yield
        finally:
            self._clock.entered = unheard

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages seen so far, in the order of their numbers."""
        return tuple(self._numbers)

    @contextmanager
    def producing(self, index: int) -> Iterator[None]:
        """Time the block, which makes batch `index`; an error in it gets the numbers so far."""
        started = perf_counter_ns()
        try:
            yield
        except Exception as error:
            error.add_note(self._story(index))
            raise
        ns = perf_counter_ns() - started
        self._batches += 1
        self._spent_ns += ns
        self.cost = Production(ns, *self._slowest())

    def _slowest(self) -> tuple[int, int]:
        slowest = self._clock.slowest()
        if slowest is None:
            return UNKNOWN_STAGE, 0
        name, time = slowest
        return self._number(name), int(time.wall_s * 1e9 / self._batches)

    def _number(self, stage: str) -> int:
        number = self._numbers.get(stage)
        if number is None:
            with self._lock:  # stages run on several threads
                number = self._numbers.setdefault(stage, len(self._numbers))
        return number

    def _story(self, index: int) -> str:
        if not self._batches:
            return f"{self._who} was at batch {index}, its first"
        rate = self._batches / (self._spent_ns / 1e9)
        return (
            f"{self._who} was at batch {index}; batches made before: {self._batches}, "
            f"at {rate:.0f} batches/s"
        )
