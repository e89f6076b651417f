"""Dataset: a lazy chain of operations, read batch by batch."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from csrun.data.adapters import describe, indexed, passes
from csrun.data.delivery import Delivery, arrays_of, keep_freed_memory
from csrun.data.errors import DataError, UnusableArraysError, require
from csrun.data.flow import BatchesFlow, Flow, OpenedStream, Source
from csrun.data.formats.base import Format
from csrun.data.indexed import Indexed, Range, batches_of, nonempty
from csrun.data.input_operators import (
    InputOperator,
    Level,
    StageClock,
    call_site,
    name_of,
    sequential_reason,
)
from csrun.data.ops.batch import batched, padding_of
from csrun.data.ops.cache import cached
from csrun.data.ops.filter import filtered
from csrun.data.ops.interleave import FileFlow, interleaved
from csrun.data.ops.map import mapped
from csrun.data.ops.repeat import repeated
from csrun.data.ops.shard import sharded
from csrun.data.ops.shuffle import shuffled
from csrun.data.sample_files import FileSet, Paths, found
from csrun.data.samples import Batch, from_arrays
from csrun.data.sharding import UNSHARDED, Sharding, Shards, shard_info
from csrun.data.spec import ArraySpec, specs_of
from csrun.data.structure import Elements

AUTOTUNE = -1  # one call per CPU of the task


@dataclass(frozen=True)
class Dataset:
    """Lazy chain of operations on samples; every operation returns a new data set.

    Operations have the semantics of tf.data, in the order of the calls: `shuffle().repeat()`
    reshuffles in each pass, `repeat().batch()` fills batches across passes. Functions passed to it
    must depend only on their arguments.

    A chain is indexable if any batch can be read without those before it: arrays, or files of
    arrays, without a filter. All others are streams, read from the start.

    operators: the chain as written, for reports. clock: times of its stages in this task.
    """

    _source: Source
    _level: Level
    operators: tuple[InputOperator, ...]
    _elements: Elements
    _shards: Shards = UNSHARDED
    _files: FileSet | None = None
    _threads: int = 1
    _ahead: int = 0
    _opening: OpenedStream = field(init=False, default_factory=OpenedStream, compare=False)
    _specs: list[tuple[ArraySpec, ...]] = field(init=False, default_factory=list, compare=False)
    clock: StageClock = field(init=False, default_factory=StageClock, compare=False)

    @staticmethod
    def from_arrays(*arrays: Any) -> "Dataset":
        """Create a data set from arrays of equal length (also memory-mapped), samples along axis 0.

        Features first, then labels; each is an array, or a tuple or dict of arrays.

        Raises: UnusableArraysError for arrays of unequal length, or without samples.
        """
        elements = Elements()
        flat = elements.taken(arrays)
        site = call_site()
        try:
            samples = from_arrays(flat, elements.names(len(flat)))
        except DataError as error:
            raise UnusableArraysError(f"{site}: {error}" if site else str(error)) from error
        options = {"arrays": len(flat), "samples": len(samples)}
        operator = InputOperator("from_arrays", Level.SAMPLE, options, site)
        source = Indexed(samples, Range(len(samples)))
        return Dataset(source, Level.SAMPLE, (operator,), elements)

    @staticmethod
    def from_files(paths: Paths, format: Format | None = None) -> "Dataset":
        """Create a data set from files, read one after the other.

        paths: a path, a pattern such as `data/train-*.npy` (its files sorted by name), or several.
        format: one of csrun.data.formats; None to infer it from the first file's suffix.

        Raises: DataError for a path or pattern that matches no file, or an unknown format
        """
        from csrun.data import formats  # formats import optional libraries

        paths = found(paths)
        files = FileSet(paths, format or formats.of(paths[0]))
        source = files.source()
        options: dict[str, Any] = {"files": len(paths), "format": type(files.format).__name__}
        if isinstance(source, Indexed):
            options["samples"] = len(source.samples)
        operator = InputOperator("from_files", Level.SAMPLE, options, call_site())
        return Dataset(source, Level.SAMPLE, (operator,), Elements(), _files=files)

    @staticmethod
    def from_batches(batches: Iterable[Any]) -> "Dataset":
        """Create a data set from batches: arrays or torch tensors, in tuples and dicts.

        A batch is (features, labels), or a dict of these two keys; each may be a tuple or dict of
        arrays. A dict of other keys is features only.

        A grain MapDataset without a filter, and a torch DataLoader with torch's own samplers and
        without workers, are read by index; all others in sequence. A torch DataLoader that shuffles
        without a seed is shuffled by the run's seed, differently in each pass.
        """
        options = {"iterable": type(batches).__name__}
        operator = InputOperator("from_batches", Level.BATCH, options, call_site())
        operators = describe(batches) or (operator,)
        elements, items = Elements(), indexed(batches)
        if items is not None:
            return Dataset(batches_of(items, elements), Level.BATCH, operators, elements)
        flow = BatchesFlow(batches, passes(batches), elements, operators[0].stage)
        return Dataset(flow, Level.BATCH, operators, elements)

    def interleave(
        self, cycle_length: int, block_length: int = 1, num_parallel_calls: int | None = None
    ) -> "Dataset":
        """Interleave `cycle_length` files, `block_length` samples of each at a time.

        Must follow `from_files`, of a streamed format. num_parallel_calls: number of files read
        ahead, one thread each; AUTOTUNE for all of them.
        """
        require(cycle_length > 0, "interleave", "cycle_length must be positive", cycle_length)
        require(block_length > 0, "interleave", "block_length must be positive", block_length)
        calls = cycle_length if num_parallel_calls == AUTOTUNE else num_parallel_calls or 0
        flow = interleaved(self._source, cycle_length, block_length, calls)
        options = {
            "cycle_length": cycle_length,
            "block_length": block_length,
            "num_parallel_calls": num_parallel_calls,
        }
        return self._then("interleave", flow, options, _files=self._files)

    def shard_files(self) -> "Dataset":
        """Shard by file: streamer i of N reads the files i, i + N, i + 2N, …

        Must precede all operations except `interleave`. A checkpoint then only resumes with the
        same number of streamers.

        Raises: DataError for fewer files than streamers
        """
        index, count = shard_info()
        if self._files is None:
            raise DataError(
                "shard_files: must follow from_files, before all operations except interleave"
            )
        files = self._files.shard(index, count)
        source = (
            replace(self._source, files=files.paths)
            if isinstance(self._source, FileFlow)
            else files.source()
        )
        shards = self._shards.with_shard(Sharding.FILE, (index, count))
        options = {"files": len(files.paths), "of": len(self._files.paths), "count": count}
        return self._then("shard_files", source, options, _files=files, _shards=shards)

    def shuffle(self, seed: int = 0, window: int | None = None) -> "Dataset":
        """Shuffle, in another order each pass, fixed by the seed.

        An indexable chain is shuffled globally, by a permutation computed on demand, without a list
        of all samples. A stream needs a `window`: that many elements are buffered, and a random one
        is next.
        """
        require(0 <= seed < 2**64, "shuffle", "seed must be in 0..2^64-1", seed)
        require(window is None or window > 0, "shuffle", "window must be positive", window)
        source, needed = shuffled(self._source, seed, window)
        return self._then("shuffle", source, {"seed": seed, "window": needed})

    def repeat(self, count: int | None = None) -> "Dataset":
        """Repeat the data `count` times, or without end for None."""
        require(count is None or count > 0, "repeat", "count must be positive", count)
        return self._then("repeat", repeated(self._source, count), {"count": count})

    def shard(self, count: int, index: int) -> "Dataset":
        """Keep every `count`-th element (sample, or batch after `batch`), from `index` on.

        Replaces sharding by batch: every streamer streams all batches of its own data set.
        `index, count = csrun.data.shard_info()` is the shard of this task.
        """
        require(0 <= index < count, "shard", f"index must be in 0..{count - 1}", index)
        shards = self._shards.with_shard(Sharding.USER, (index, count))
        source = sharded(self._source, count, index)
        return self._then("shard", source, {"count": count, "index": index}, _shards=shards)

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        padded_shapes: Sequence[Any] | None = None,
        padding_values: Any = 0,
    ) -> "Dataset":
        """Combine consecutive samples into batches.

        padded_shapes: for samples of different shapes, the shape to pad each array to (None to
        leave one unchanged), with padding_values: one value, or one per array.
        """
        require(batch_size > 0, "batch", "batch_size must be positive", batch_size)
        once = self._level is Level.SAMPLE
        require(once, "batch", "batch must be called once", "a second batch()")
        padding = None if padded_shapes is None else padding_of(padded_shapes, padding_values)
        options = {
            "batch_size": batch_size,
            "drop_remainder": drop_remainder,
            "padded_shapes": padded_shapes,
        }
        source = batched(self._source, batch_size, drop_remainder, padding)
        return self._then("batch", source, options, _level=Level.BATCH)

    def map(self, function: Callable[..., Any], num_parallel_calls: int | None = None) -> "Dataset":
        """Apply a function: after `batch` to whole batches, before it to each sample.

        It gets features and labels in their structure, and returns an array, a tuple or a dict.

        Mapping whole batches is many times faster. num_parallel_calls: number of concurrent calls,
        on threads; AUTOTUNE for one per CPU of the task. The order is preserved.
        """
        rule = "num_parallel_calls must be positive, or AUTOTUNE"
        fine = num_parallel_calls in (None, AUTOTUNE) or num_parallel_calls > 0
        require(fine, "map", rule, num_parallel_calls)
        options = {"function": name_of(function), "num_parallel_calls": num_parallel_calls}
        operator = self._operator("map", options)
        threads = _cpus() if num_parallel_calls == AUTOTUNE else num_parallel_calls
        elements = Elements()
        flat = elements.results_of(self._elements.function(function))
        source = mapped(self._source, flat, operator, threads)
        threads = max(self._threads, threads or 1)
        return self._with(source, operator, _threads=threads, _elements=elements)

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """Keep the samples (batches after `batch`) for which a function of the arrays is true.

        The chain is not indexable from here on, as the number of removed elements is unknown.
        """
        operator = self._operator("filter", {"function": name_of(predicate)})
        flat = self._elements.function(predicate)
        return self._with(filtered(self._source, flat, operator), operator)

    def cache(self) -> "Dataset":
        """Cache the elements in this task's memory; all passes repeat the first."""
        return self._then("cache", cached(self._source))

    def prefetch(self, ahead: int) -> "Dataset":
        """Produce up to `ahead` batches in advance, on a thread."""
        require(ahead > 0, "prefetch", "the number of batches must be positive", ahead)
        return self._then("prefetch", self._source, {"ahead": ahead}, _ahead=ahead)

    @property
    def indexable(self) -> bool:
        """True if a batch can be read without those before it."""
        return isinstance(self._source, Indexed)

    @property
    def parallel(self) -> bool:
        """True if the chain uses several CPUs of the task."""
        return any(
            operator.options.get("num_parallel_calls") is not None for operator in self.operators
        )

    @property
    def sharding(self) -> Sharding:
        """Sharding among the streamers."""
        return self._shards.sharding

    @property
    def replayed(self) -> bool:
        """True if each of several streamers makes all batches, including those of others."""
        return not self.indexable and self.sharding is Sharding.BATCH

    @property
    def most_streamers(self) -> int | None:
        """Maximum number of streamers; None for any number."""
        by_file = (op for op in self.operators if op.name == "shard_files")
        return next((op.options["of"] for op in by_file), None)

    @property
    def cardinality(self) -> int | None:
        """Number of batches; None if endless or unknown."""
        return self._source.cardinality if isinstance(self._source, Indexed) else None

    def element_spec(self) -> tuple[ArraySpec, ...]:
        """Return shapes and dtypes of the first batch, which is read once and kept for the reader.

        Raises: DataError if there is none, or its arrays differ in length
        """
        if not self._specs:
            self._specs.append(self._first_spec())
        return self._specs[0]

    def _first_spec(self) -> tuple[ArraySpec, ...]:
        if isinstance(self._source, Indexed):
            source = nonempty(self._source)
            first = arrays_of(source.read(source.number_of(0), self.clock), self.clock)
        else:
            _, first = self._opening.first(self._batched(self._source), self.clock)
        return specs_of(first, self.names(len(first)))

    def estimated_batch_bytes(self) -> int | None:
        """Estimate the bytes of the largest batch from a few samples; None if that is not possible.

        User functions are only called for this if a batch has many samples.
        """
        has_functions = any(operator.name == "map" for operator in self.operators)
        source = self._source
        return source.estimated_batch_bytes(has_functions) if isinstance(source, Indexed) else None

    def names(self, arrays: int) -> list[str]:
        """Return the names of a batch's arrays: `features`, `features/ids`, `labels`, …

        Available after the first batch.
        """
        return self._elements.names(arrays)

    def nested(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Nest one value per array in the structure of a batch: (features, labels)."""
        return self._elements.given(values)

    def repeat_batch(self, batch: Sequence[Any]) -> "Dataset":
        """Return a data set that repeats one batch."""
        again = Dataset.from_batches(repeat({f"array_{n}": x for n, x in enumerate(batch)}))
        return Dataset(again._source, Level.BATCH, again.operators, self._elements)

    def in_parts(self, parts: int) -> "Dataset | None":
        """Return the data set of equal parts of the batches, in order; None if they cannot be made
        one by one.

        Functions after `batch` get a part instead of a batch. Parts can be made of an indexable
        chain with `batch`, without an incomplete batch, and not sharded by file or by the user.
        """
        source, is_common = self._source, self.sharding is Sharding.BATCH
        found = source.in_parts(parts) if isinstance(source, Indexed) and is_common else None
        return None if found is None else replace(self, _source=found)

    def deliveries(
        self, start: int = 0, stride: int = 1, clock: StageClock | None = None
    ) -> Iterator[Delivery]:
        """Yield batches start, start + stride, … of a run, each with the origins of its samples.

        Rows of arrays are copied when the delivery is written. clock: replaces the data set's own
        for this reader.

        Raises: DataError if the data set is empty, not batched, or sharded for other streamers
        """
        start, stride = self._shards.local(start, stride)
        keep_freed_memory()
        source = self._source
        clock = clock or self.clock
        if isinstance(source, Indexed):
            nonempty(source)
            return source.deliveries(start, stride, self._threads, self._ahead, clock)
        if start or stride > 1:
            self._opening.warn_of_replay(*sequential_reason(self.operators))
        flow = self._batched(source)
        return self._opening.deliveries(flow, start, stride, self._ahead, clock)

    def batches(
        self, start: int = 0, stride: int = 1, clock: StageClock | None = None
    ) -> Generator[Batch]:
        """Yield batches start, start + stride, start + 2·stride, … of a run.

        Raises: as `deliveries`
        """
        deliveries = self.deliveries(start, stride, clock)
        return (arrays_of(delivery.batch, clock or self.clock) for delivery in deliveries)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over all batches."""
        return self.batches()

    def _then(
        self, name: str, source: Source, options: Mapping[str, Any] = {}, **changes: Any
    ) -> "Dataset":
        return self._with(source, self._operator(name, options), **changes)

    def _with(self, source: Source, operator: InputOperator, **changes: Any) -> "Dataset":
        operators = (*self.operators, operator)
        return replace(self, _source=source, operators=operators, **{"_files": None, **changes})

    def _operator(self, name: str, options: Mapping[str, Any]) -> InputOperator:
        return InputOperator(name, self._level, options, call_site())

    def _batched(self, flow: Flow) -> Flow:
        if self._level is Level.SAMPLE:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return flow


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
