"""Sources of the wafer's batches: rings of streamers, or the dataset itself."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from csrun.base.errors import CsrunError
from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.executable import InputSpec
from csrun.executable.arrays import Array, Batch, ReusedBatch, SplitBatch, empty, nbytes_of, view
from csrun.runtime.step.batch_maker import BatchMaker, BatchNumbers
from csrun.runtime.wire.messages import StreamerUse
from csrun.runtime.wire.ring import END_OF_DATA, PASS, UNKNOWN_STAGE, BatchCounts, RingReader
from csrun.runtime.wire.run_time_clock import awake_s


class GlobalBatch(msgspec.Struct, frozen=True):
    """One global batch, and its counts."""

    batch: Batch
    made: BatchCounts


class BatchSource(Protocol):
    """Global batches in order, one at a time."""

    def take(self) -> GlobalBatch | None:
        """Return the next batch, the same one until it is released; None at the end of the data."""

    def release(self) -> None:
        """Release the batch taken last."""

    def used(self) -> tuple[StreamerUse, ...]:
        """Return the cost of the batches taken since the last call."""


class RingSource:
    """Batches of several streamers in turn: batch k comes from streamer k mod N.

    parts: number of parts of a batch, each a batch of a streamer; at most N.
    The data end with the first streamer that ends; with `to_the_last` the others continue.
    """

    def __init__(
        self,
        rings: Sequence[RingReader],
        first_batch: int,
        to_the_last: bool = False,
        parts: int = 1,
    ) -> None:
        self._all = list(enumerate(rings))
        self._rings = list(self._all)  # streamers that have not ended
        self._parts = parts
        self._turn = first_batch * parts % len(rings)
        self._uses = [_UseCounter() for _ in rings]
        self._to_the_last = to_the_last
        self._pass = 0
        self._taken: GlobalBatch | None = None

    @property
    def slots(self) -> int:
        """Number of batches that all rings together can hold."""
        return sum(ring.slots for _, ring in self._rings) // self._parts

    def begin(self, first: int, number: int) -> None:
        """Set the next batch to number `first` of the pass of this number; other batches are
        discarded.
        """
        if self._taken is not None:
            self.release()
        self._pass, self._rings = number, list(self._all)
        self._turn = first * self._parts % len(self._rings)
        for _, ring in self._rings:
            ring.discard(number)

    def take(self) -> GlobalBatch | None:
        """Return the next batch, the same one until it is released; None at the end of the data."""
        if self._taken is None:
            self._taken = self._take() if self._parts == 1 else self._take_parts()
        return self._taken

    def _take_parts(self) -> GlobalBatch | None:
        """Take the parts of a batch; the data end before a first part."""
        found = []
        for number in range(self._parts):
            part = self._take(number)
            if part is None:
                return None
            found.append(part)
        counts = zip(*(part.made.counts for part in found), strict=True)
        made = BatchCounts(sum(part.made.rows for part in found), tuple(map(sum, counts)))
        return GlobalBatch(SplitBatch([part.batch for part in found]), made)

    def _take(self, number: int = 0) -> GlobalBatch | None:
        """Take the batch of the streamer whose turn it is, or of one of those after it."""
        if not self._rings:
            return None
        asked = awake_s()
        streamer, ring = self._rings[(self._turn + number) % len(self._rings)]
        slot = ring.take()
        header = slot.header.tolist()
        # A streamer may have filled slots of the last pass before it learned of this one.
        while header[PASS] != self._pass:
            ring.release()
            slot = ring.take()
            header = slot.header.tolist()
        waited = awake_s() - asked
        rows, _, produce_ns, slowest, slowest_ns, _, _, *counts = header
        if rows == END_OF_DATA:
            ring.release()
            if self._to_the_last:
                return self._take_from_others()
            self._rings.clear()
            return None
        self._uses[streamer].add(waited, produce_ns, slowest, slowest_ns)
        return GlobalBatch(slot.arrays, BatchCounts(rows, tuple(counts)))

    def _take_from_others(self) -> GlobalBatch | None:
        self._rings.pop(self._turn)
        if not self._rings:
            return None
        self._turn %= len(self._rings)
        return self._take()

    def release(self) -> None:
        """Return the slots and continue with the next streamer."""
        self._taken = None
        for _ in range(self._parts):
            self._rings[self._turn][1].release()
            self._turn = (self._turn + 1) % len(self._rings)

    def used(self) -> tuple[StreamerUse, ...]:
        """Return the cost of the batches taken since the last call, by streamer."""
        return tuple(use.read(turn) for turn, use in enumerate(self._uses) if use.batches)


class FirstRows:
    """Batches of another program, of which this one computes only the first rows.

    inputs: of this program.
    whole: of the other one.

    Raises: CsrunError as `require_first_rows`
    """

    def __init__(
        self, source: BatchSource, inputs: Sequence[InputSpec], whole: Sequence[InputSpec]
    ) -> None:
        require_first_rows(inputs, whole)
        self._source = source
        self._most = inputs[0].shape[0]

    def take(self) -> GlobalBatch | None:
        """Return the next batch; None at the end of the data.

        Raises: CsrunError for one with more samples, which only the other program can compute
        """
        taken = self._source.take()
        if taken is None:
            return None
        if taken.made.rows > self._most:
            raise CsrunError(
                f"the next batch has {taken.made.rows} samples, this program takes {self._most}: "
                "run the program of the full batch"
            )
        batch = taken.batch.whole if isinstance(taken.batch, SplitBatch) else taken.batch
        return GlobalBatch(tuple(array[: self._most] for array in batch), taken.made)

    def release(self) -> None:
        """Release the batch taken last."""
        self._source.release()

    def used(self) -> tuple[StreamerUse, ...]:
        """Return the cost of the batches taken since the last call."""
        return self._source.used()


def require_first_rows(inputs: Sequence[InputSpec], whole: Sequence[InputSpec]) -> None:
    """Check that a program with these inputs can use the first rows of another's batches.

    Raises: CsrunError if they differ in anything but a smaller number of samples
    """
    if not are_first_rows(inputs, whole):
        ours, theirs = (", ".join(map(_text, specs)) for specs in (inputs, whole))
        raise CsrunError(
            f"a program with inputs {ours} cannot take the first rows of batches {theirs}: use "
            "separate batches"
        )


def are_first_rows(inputs: Sequence[InputSpec], whole: Sequence[InputSpec]) -> bool:
    """Return whether they only differ in a smaller number of samples."""
    rows = inputs[0].shape[0]
    cut = [replace(spec, shape=(rows, *spec.shape[1:])) for spec in whole]
    return list(inputs) == cut and rows <= whole[0].shape[0]


def _text(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"


def _aligned_array(spec: InputSpec) -> Array:
    return view(empty(nbytes_of(spec.shape, spec.dtype)), 0, spec.shape, spec.dtype)


class InProcessSource:
    """Data set of this process, through one slot with the same checks and conversions.

    A step waits for the complete production of its batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        inputs: tuple[InputSpec, ...],
        first: int,
        settings: RunSettings,
        last: int | None = None,
    ) -> None:
        self._slot = ReusedBatch(_aligned_array(spec) for spec in inputs)
        numbers = BatchNumbers(first, last=last)
        self._maker = BatchMaker(dataset, inputs, numbers, settings, "this process")
        self._use = _UseCounter()
        self._taken: GlobalBatch | None = None

    def begin(self, first: int, last: int | None) -> None:
        """Start with batch `first`, up to `last`."""
        self._taken = None
        self._maker.begin(BatchNumbers(first, last=last))

    def stage(self, number: int) -> str | None:
        """Return the name of a stage; None for an unknown one."""
        names = self._maker.meter.stages
        return names[number] if 0 <= number < len(names) else None

    def take(self) -> GlobalBatch | None:
        """Return the next batch, the same one until it is released; None at the end of the data."""
        if self._taken is None and (made := self._maker.make(self._slot)) is not None:
            cost = self._maker.meter.cost
            self._use.add(cost.ns / 1e9, cost.ns, cost.slowest, cost.slowest_ns)
            self._taken = GlobalBatch(self._slot, made)
        return self._taken

    def release(self) -> None:
        """Release the only slot."""
        self._taken = None

    def used(self) -> tuple[StreamerUse, ...]:
        """Return the cost of the batches taken since the last call."""
        return (self._use.read(0),)


class _UseCounter:
    """Accumulates a `StreamerUse`; reading it resets it."""

    __slots__ = ("batches", "produce_ns", "slowest", "slowest_ns", "wait_s")

    def __init__(self) -> None:
        self.batches, self.wait_s, self.produce_ns = 0, 0.0, 0
        self.slowest, self.slowest_ns = UNKNOWN_STAGE, 0

    def add(self, wait_s: float, produce_ns: int, slowest: int, slowest_ns: int) -> None:
        self.batches += 1
        self.wait_s += wait_s
        self.produce_ns += produce_ns
        self.slowest, self.slowest_ns = slowest, slowest_ns

    def read(self, streamer: int) -> StreamerUse:
        use = StreamerUse(
            streamer,
            self.batches,
            self.wait_s,
            self.produce_ns / 1e9,
            self.slowest,
            self.slowest_ns / 1e9,
        )
        self.batches, self.wait_s, self.produce_ns = 0, 0.0, 0
        return use
