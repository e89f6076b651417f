"""Production of a run's batches, in a streamer or in the process of the steps: next, fill, check,
meter.

The data set returns batches by number and writes into given arrays. This module decides which
number comes next, whether the program accepts the batch, and what it cost.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.data.delivery import COPY_STAGE, ArrayType, Delivery
from csrun.data.errors import BatchOrigin, text_of
from csrun.data.input_operators import StageClock, no_listener
from csrun.executable import AxisSlice, InputSpec, LabelRange, NumberRange
from csrun.executable.arrays import Array, Batch
from csrun.runtime.wire.ring import NO_PRODUCTION, UNKNOWN_STAGE, BatchCounts, Production

Inputs = tuple[InputSpec, ...]


@dataclass(frozen=True)
class BatchNumbers:
    """Batches first, first + stride, … of a run, up to `last`, which is excluded."""

    first: int = 0
    stride: int = 1
    last: int | None = None


class BatchMaker:
    """Makes batches for a program's inputs, one after the other.

    number: number of the next batch.
    who: name of the maker in messages, e.g. `this streamer`.
    """

    def __init__(
        self,
        dataset: Dataset,
        inputs: Inputs,
        numbers: BatchNumbers,
        settings: RunSettings,
        who: str,
    ) -> None:
        self.meter = Meter(dataset.clock, who)
        self._inputs = inputs
        # specification of a full batch that was accepted
        self._fitting: tuple[ArrayType, ...] | None = None
        self._settings = settings
        self._clock = dataset.clock
        self._dataset = dataset
        self.begin(numbers)

    def begin(self, numbers: BatchNumbers) -> None:
        """Make these batches from now on."""
        self.number = numbers.first
        self._numbers = numbers
        self._deliveries = self._dataset.deliveries(numbers.first, numbers.stride)

    def make(self, slot: Batch) -> BatchCounts | None:
        """Make the next batch in a slot's arrays; return its counts, None at the end of the data.

        Raises: CsrunError for a batch that the program does not accept, or that must be refused
        """
        last = self._numbers.last
        if last is not None and self.number >= last:
            return None
        with self.meter.producing(self.number):
            delivery = next(self._deliveries, None)
            made = None if delivery is None else self._fill(slot, delivery)
        self.number += self._numbers.stride
        return made

    def _fill(self, slot: Batch, delivery: Delivery) -> BatchCounts:
        """Write a batch into a slot's arrays after checks; an incomplete one is padded."""
        inputs, kinds, rows = self._inputs, delivery.kinds, self._inputs[0].shape[0]
        name = BatchName(self.number, rows, delivery)
        heads = slot
        # nearly all batches are like the first: this comparison is the only cost
        if kinds != self._fitting:
            rows = rows_of_fitting(kinds, inputs, name, self._dataset.names(len(kinds)))
            heads = tuple(array[:rows] for array in slot)
            # Only of a full batch: an incomplete one is padded each time.
            self._fitting = kinds if rows == len(slot[0]) else None
        given = delivery.write(heads, self._clock)
        with self._clock.timed(COPY_STAGE):
            counts = count_labels(given, inputs, name)
            require_known(given, inputs, name)
            require_in_range(heads, inputs, name)
            if rows < inputs[0].shape[0]:
                fill_up(slot, rows)
            if self._settings.check_numerics:
                require_finite(heads, inputs, name)
        return BatchCounts(rows, counts)


def fill_up(slot: Batch, rows: int) -> None:
    """Pad a batch of `rows` rows with copies of them, starting with the first row.

    A copy computes the same values as its row: if those are finite, the padding adds no NaN.
    """
    for array in slot:
        array[rows:] = array[np.arange(rows, len(array)) % rows]


class BatchName(NamedTuple):
    """Name of global batch `number` of a run for messages; `size`: rows of a full batch."""

    number: int
    size: int
    delivery: Delivery | None  # None if no data set has the batch

    def __str__(self) -> str:
        return f"batch {self.number}"

    def with_samples(self, rows: int) -> str:
        """Add the run's sample numbers to the name."""
        first = self.number * self.size
        return f"batch {self.number} (samples {first} to {first + rows - 1} of the run)"

    def row(self, row: int, rows: int) -> str:
        """Name one row, with its sample as the source names it, if that is known."""
        if self.delivery is None:
            return f"row {row}"
        origins = self.delivery.origins()
        sample = f"sample {self.number * self.size + row} of the run"
        if len(origins) == rows and not isinstance(origins[0], BatchOrigin):
            sample = text_of(origins[row])
        return f"batch {self.number}, row {row} ({sample})"

    def place(self, bad: npt.NDArray[np.bool_]) -> tuple[tuple[int, ...], str]:
        """Return the position of the first true element in an array of the batch, and its name for
        messages.

        Shapes: bad [rows, ...]
        """
        row, *rest = (int(at) for at in np.argwhere(bad)[0])
        position = f", position {', '.join(map(str, rest))}" if rest else ""
        return (row, *rest), self.row(row, len(bad)) + position


def rows_of_fitting(
    kinds: Sequence[ArrayType], inputs: Inputs, name: BatchName, names: Sequence[str]
) -> int:
    """Return the number of rows of a batch that has the same specification as the first one.

    Raises: CsrunError for other arrays or names, another shape, or a dtype of another kind
    """
    if len(kinds) != len(inputs):
        raise CsrunError(
            f"{name}: the model takes {len(inputs)} arrays, input_fn returned {len(kinds)}"
        )
    for its, spec in zip(names, inputs, strict=True):
        if its != spec.name:
            raise CsrunError(
                f"{name}: expected key {spec.name} as in the first batch, input_fn returned "
                f"{its}: return the same keys in each batch"
            )
    rows = _rows(kinds[0])
    for kind, spec in zip(kinds, inputs, strict=True):
        if kind.shape[1:] != spec.shape[1:] or not 0 < _rows(kind) <= spec.shape[0]:
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must have shape {_text(spec.shape)} "
                f"like the first batch, got {_text(kind.shape)}: return batches of one shape "
                "(only the last may be shorter)"
            )
        if _rows(kind) != rows:
            raise CsrunError(f"{name}: {spec.name} has {_rows(kind)} rows, the others {rows}")
        if not np.can_cast(kind.dtype, spec.dtype, "same_kind"):
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must be {spec.dtype} like the first "
                f"batch, got {kind.dtype}: convert it in input_fn"
            )
    return rows


def count_labels(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> tuple[int, ...]:
    """Count the labels that count, for each range of each input, and check that all are in range.

    The data set's own values are checked: 2³² + 3 converted to int32 is 3.

    Raises: CsrunError naming the first row with another label
    """
    return tuple(
        _count_in(one, array, spec.name, name)
        for array, spec in zip(arrays, inputs, strict=True)
        for one in spec.labels
    )


def _cut(labels: npt.NDArray[Any], cuts: Sequence[AxisSlice]) -> npt.NDArray[Any]:
    for cut in cuts:
        at = cut.start if cut.stop is None else slice(cut.start, cut.stop, cut.step)
        labels = labels[(*(slice(None),) * cut.dim, at)]
    return labels


def _count_in(one: LabelRange, array: npt.NDArray[Any], spec: str, name: BatchName) -> int:
    labels = _cut(array, one.cuts)
    last, ignored = one.classes - 1, one.ignore_index
    is_ignored: Any = False
    if not labels.size or 0 <= labels.min() <= labels.max() <= last:
        if not 0 <= ignored <= last:
            return labels.size
        is_ignored = labels == ignored
    else:
        is_ignored = labels == ignored
        if (bad := ~is_ignored & ((labels < 0) | (labels > last))).any():
            marks = np.zeros(array.shape, bool)
            _cut(marks, one.cuts)[...] = bad
            at, where = name.place(marks)
            raise CsrunError(
                f"{where}: {spec} must be in 0..{last}, got {array[at]}: correct it, or use "
                f"ignore_index ({ignored}) for labels to skip"
            )
    return labels.size - int(np.count_nonzero(is_ignored))


def require_known(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> None:
    """Check that indices are within their table or axis.

    Raises: CsrunError naming the first position out of range
    """
    for values, spec in zip(arrays, inputs, strict=True):
        for one in spec.numbers:
            _require_in(one, values, spec.name, name)


def _require_in(one: NumberRange, array: npt.NDArray[Any], spec: str, name: BatchName) -> None:
    numbers, last = _cut(array, one.cuts), one.count - 1
    if not numbers.size or (numbers.min() >= 0 and numbers.max() <= last):
        return
    marks = np.zeros(array.shape, bool)
    _cut(marks, one.cuts)[...] = (numbers < 0) | (numbers > last)
    at, where = name.place(marks)
    raise CsrunError(
        f"{where}: {spec} must be in 0..{last} (an index into {one.count} elements), got "
        f"{array[at]}"
    )


def require_in_range(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> None:
    """Check that no finite number overflows the 16-bit format that it is rounded to.

    Raises: CsrunError naming the first sample and the feature with such a number
    """
    for values, spec in zip(arrays, inputs, strict=True):
        if spec.half is None or not values.size:
            continue
        most = spec.half.overflows_from
        if values.max() < most and values.min() > -most:
            continue
        marks = (np.abs(values) >= most) & np.isfinite(values)
        if marks.any():
            at, where = name.place(marks)
            raise CsrunError(
                f"{where}: {spec.name} is {values[at]:.9g}, and the largest number of "
                f"{spec.half.name} is {spec.half.largest:.9g}: scale the data, or set another "
                "runconfig.precision"
            )


def require_finite(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> None:
    """Check that there is no NaN and no Inf, for `runconfig.check_numerics`.

    Two passes over the data without a temporary array: a NaN is both the minimum and the maximum.
    The values are checked in the type in which the wafer gets them: 1e300 is finite in a data set
    of float64, but not in float32.

    Raises: CsrunError naming the first bad row, the array, and the number of bad values
    """
    for values, spec in zip(arrays, inputs, strict=True):
        if values.dtype.kind != "f" or not values.size:
            continue
        if not (isfinite(values.min()) and isfinite(values.max())):
            raise CsrunError(_not_finite(values, spec, name))


def _not_finite(values: npt.NDArray[Any], spec: InputSpec, name: BatchName) -> str:
    bad = ~np.isfinite(values.reshape(len(values), -1))
    rows = np.flatnonzero(bad.any(axis=1))
    nans, count = int(np.isnan(values).sum()), int(bad.sum())
    return (
        f"{name.row(int(rows[0]), len(values))}: {spec.name} is not finite; the batch has {nans} "
        f"NaN and {count - nans} Inf as {spec.dtype}, in {len(rows)} rows: clean the data, or "
        "drop such samples in input_fn"
    )


def _rows(kind: ArrayType) -> int:
    return kind.shape[0] if kind.shape else 0


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


class Meter:
    """Time to make batches, for the headers of their slots; assigns indices to stages.

    cost: that of the last batch.
    who: name of the maker in messages, e.g. `this streamer`.
    """

    def __init__(self, clock: StageClock, who: str) -> None:
        self.cost = NO_PRODUCTION
        self._who = who
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._lock = Lock()
        self._batches, self._spent_ns = 0, 0

    @contextmanager
    def reported_to(self, enter: Callable[[int], None]) -> Iterator[None]:
        """Call `enter` with the index of each stage that a batch enters, while the context
        lasts.
        """
        self._clock.entered = lambda stage: enter(self._number(stage))
        try:
            yield
        finally:
            self._clock.entered = no_listener

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages so far, by index."""
        return tuple(self._numbers)

    @contextmanager
    def producing(self, index: int) -> Iterator[None]:
        """Time the block, which makes batch `index`; an error in it is annotated with the batch."""
        started = perf_counter_ns()
        try:
            yield
        except Exception as error:
            error.add_note(self._describe_failure(index))
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

    def _describe_failure(self, index: int) -> str:
        if not self._batches:
            return f"{self._who} failed in its first batch, {index}"
        rate = self._batches / (self._spent_ns / 1e9)
        return (
            f"{self._who} failed in batch {index} after {self._batches} batches at {rate:.0f} "
            "batches/s"
        )
