"""Dataset: a lazy chain of operations, read a batch at a time."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from csrun.data.adapters import describe, indexed, passes
from csrun.data.delivery import Delivery, arrays_of, keep_freed_memory
from csrun.data.errors import DataError, UnusableArraysError, require
from csrun.data.files import FileSet, Paths, found
from csrun.data.flow import BatchesFlow, Flow, Opening, Source
from csrun.data.formats.base import Format
from csrun.data.indexed import Indexed, Range, batches_of, nonempty
from csrun.data.operators import Level, Operator, StageClock, call_site, name_of, why_in_turn
from csrun.data.ops.batch import batched, padding_of
from csrun.data.ops.cache import cached
from csrun.data.ops.filter import filtered
from csrun.data.ops.interleave import FileFlow, interleaved
from csrun.data.ops.map import mapped
from csrun.data.ops.repeat import repeated
from csrun.data.ops.shard import sharded
from csrun.data.ops.shuffle import shuffled
from csrun.data.samples import Batch, from_arrays
from csrun.data.sharding import UNSHARDED, Sharding, Shards, shard_info
from csrun.data.spec import ArraySpec, specs_of
from csrun.data.structure import Elements

AUTOTUNE = -1  # as many calls at a time as the task has CPUs
FEW_SAMPLES, MANY_SAMPLES = 2, 1024  # of a batch whose size is estimated, and that is worth it


@dataclass(frozen=True)
class Dataset:
    """Batches of samples; every operation gives a new data set and touches no data.

    Operations mean what they mean in tf.data, in the order in which they are called:
    `shuffle().repeat()` shuffles anew each pass, and `repeat().batch()` fills batches across the
    border of two passes. Functions given to it must depend on their arguments alone.

    A chain is indexable when any batch can be read without those before it: it is made of arrays,
    or of files that hold arrays, and not filtered. All others are streams, read from their start.

    operators: the chain as it was written, for reports. clock: what its stages cost in this task.
    """

    _source: Source
    _level: Level
    operators: tuple[Operator, ...]
    _elements: Elements
    _shards: Shards = UNSHARDED
    _files: FileSet | None = None
    _threads: int = 1
    _ahead: int = 0
    _opening: Opening = field(init=False, default_factory=Opening, compare=False)
    _specs: list[tuple[ArraySpec, ...]] = field(init=False, default_factory=list, compare=False)
    clock: StageClock = field(init=False, default_factory=StageClock, compare=False)

    @staticmethod
    def from_arrays(*arrays: Any) -> "Dataset":
        """Samples along the first axis of equally long arrays (memory-mapped ones too).

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
        operator = Operator("from_arrays", Level.SAMPLE, options, site)
        source = Indexed(samples, Range(len(samples)))
        return Dataset(source, Level.SAMPLE, (operator,), elements)

    @staticmethod
    def from_files(paths: Paths, format: Format | None = None) -> "Dataset":
        """Samples of files, one file after the other.

        paths: a path, a pattern such as `data/train-*.npy` (its files sorted by name), or several.
        format: one of csrun.data.formats; None for what the first file's suffix says.

        Raises: DataError for a path or pattern without a file, and for files of no known format
        """
        from csrun.data import formats  # its formats import what only they need

        paths = found(paths)
        files = FileSet(paths, format or formats.of(paths[0]))
        source = files.source()
        options: dict[str, Any] = {"files": len(paths), "format": type(files.format).__name__}
        if isinstance(source, Indexed):
            options["samples"] = len(source.samples)
        operator = Operator("from_files", Level.SAMPLE, options, call_site())
        return Dataset(source, Level.SAMPLE, (operator,), Elements(), _files=files)

    @staticmethod
    def from_batches(batches: Iterable[Any]) -> "Dataset":
        """Batches as an iterable gives them: arrays or torch tensors, in tuples and dicts.

        A tuple, or a dict of these keys, has `features` and `labels`; each may be a tuple or dict
        of arrays. A dict of other keys is features alone.

        A grain MapDataset is read by number, as long as it is not filtered, and so is a torch
        DataLoader of torch's own samplers, without workers; all others are read in turn. A torch
        DataLoader that shuffles without a seed has one order in all tasks, another one each pass:
        those of the run's seed.
        """
        options = {"iterable": type(batches).__name__}
        operator = Operator("from_batches", Level.BATCH, options, call_site())
        operators = describe(batches) or (operator,)
        elements, items = Elements(), indexed(batches)
        if items is not None:
            return Dataset(batches_of(items, elements), Level.BATCH, operators, elements)
        flow = BatchesFlow(batches, passes(batches), elements, operators[0].stage)
        return Dataset(flow, Level.BATCH, operators, elements)

    def interleave(
        self, cycle_length: int, block_length: int = 1, num_parallel_calls: int | None = None
    ) -> "Dataset":
        """Read `cycle_length` files side by side, `block_length` samples of each in turn.

        Right after `from_files`, for files that can only be read in turn. num_parallel_calls: how
        many of these are read ahead, each on a thread of its own; AUTOTUNE for all of them.
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
        """Every streamer reads files of its own: file i, i + N, i + 2N, … of N streamers.

        Before any other operation but `interleave`. The number of streamers is then part of the
        run: a checkpoint goes on with the same number.

        Raises: DataError for fewer files than streamers
        """
        index, count = shard_info()
        if self._files is None:
            raise DataError("shard_files: comes right after from_files, before all but interleave")
        files = self._files.shard(index, count)
        source = (
            replace(self._source, files=files.paths)
            if isinstance(self._source, FileFlow)
            else files.source()
        )
        shards = self._shards.and_by(Sharding.FILE, (index, count))
        options = {"files": len(files.paths), "of": len(self._files.paths), "count": count}
        return self._then("shard_files", source, options, _files=files, _shards=shards)

    def shuffle(self, seed: int = 0, window: int | None = None) -> "Dataset":
        """Another order each pass, fixed by the seed.

        An indexable chain is shuffled as a whole, by a permutation that is computed where it is
        read: no list of all samples is held. A stream needs a `window`: so many elements are held,
        and a random one of them comes next.
        """
        require(0 <= seed < 2**64, "shuffle", "seed must be in 0..2^64-1", seed)
        require(window is None or window > 0, "shuffle", "window must be positive", window)
        source, needed = shuffled(self._source, seed, window)
        return self._then("shuffle", source, {"seed": seed, "window": needed})

    def repeat(self, count: int | None = None) -> "Dataset":
        """`count` passes over the data, endless when None."""
        require(count is None or count > 0, "repeat", "count must be positive", count)
        return self._then("repeat", repeated(self._source, count), {"count": count})

    def shard(self, count: int, index: int) -> "Dataset":
        """Every `count`-th element (sample, or batch after `batch`), from `index` on.

        It turns sharding by batch off: every streamer streams all batches of its own data set.
        `index, count = csrun.data.shard_info()` tells which part is whose.
        """
        require(0 <= index < count, "shard", f"index must be in 0..{count - 1}", index)
        shards = self._shards.and_by(Sharding.USER, (index, count))
        source = sharded(self._source, count, index)
        return self._then("shard", source, {"count": count, "index": index}, _shards=shards)

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        padded_shapes: Sequence[Any] | None = None,
        padding_values: Any = 0,
    ) -> "Dataset":
        """Consecutive samples in batches; an incomplete last one is kept unless dropped.

        padded_shapes: for samples that differ, the shape that each of their arrays is filled up to
        (None for one that stays as it is), with padding_values: one value, or one an array.
        """
        require(batch_size > 0, "batch", "batch_size must be positive", batch_size)
        once = self._level is Level.SAMPLE
        require(once, "batch", "a data set is batched once", "a second batch()")
        padding = None if padded_shapes is None else padding_of(padded_shapes, padding_values)
        options = {
            "batch_size": batch_size,
            "drop_remainder": drop_remainder,
            "padded_shapes": padded_shapes,
        }
        source = batched(self._source, batch_size, drop_remainder, padding)
        return self._then("batch", source, options, _level=Level.BATCH)

    def map(self, function: Callable[..., Any], num_parallel_calls: int | None = None) -> "Dataset":
        """Apply a function of the arrays: after `batch` to whole batches, before it to each sample.

        It gets features and labels, nested as they came, and gives what comes of them, as an array,
        a tuple or a dict.

        Mapping whole batches is many times faster. num_parallel_calls: so many calls at a time, on
        threads; AUTOTUNE for as many as the task has CPUs. The order stays.
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

        The chain cannot be indexed from here on: nobody knows how many are left out before a batch.
        """
        operator = self._operator("filter", {"function": name_of(predicate)})
        flat = self._elements.function(predicate)
        return self._with(filtered(self._source, flat, operator), operator)

    def cache(self) -> "Dataset":
        """Keep what lies below in this task's memory once it was made; every pass is the first."""
        return self._then("cache", cached(self._source))

    def prefetch(self, ahead: int) -> "Dataset":
        """Produce up to `ahead` batches on a thread before they are asked for."""
        require(ahead > 0, "prefetch", "the number of batches must be positive", ahead)
        return self._then("prefetch", self._source, {"ahead": ahead}, _ahead=ahead)

    @property
    def indexable(self) -> bool:
        """Whether a batch can be read without those before it."""
        return isinstance(self._source, Indexed)

    @property
    def parallel(self) -> bool:
        """Whether the chain uses several CPUs where the task has them."""
        return any(
            operator.options.get("num_parallel_calls") is not None for operator in self.operators
        )

    @property
    def sharding(self) -> Sharding:
        """How it is split among the streamers."""
        return self._shards.sharding

    @property
    def replayed(self) -> bool:
        """Whether each of several streamers makes all batches, the others' included."""
        return not self.indexable and self.sharding is Sharding.BATCH

    @property
    def most_streamers(self) -> int | None:
        """How many streamers it can be split among; None for any number."""
        by_file = (op for op in self.operators if op.name == "shard_files")
        return next((op.options["of"] for op in by_file), None)

    @property
    def cardinality(self) -> int | None:
        """Batches of the data set; None when endless, or not known beforehand."""
        return self._source.cardinality if isinstance(self._source, Indexed) else None

    def element_spec(self) -> tuple[ArraySpec, ...]:
        """Shapes and dtypes of the first batch, which is read once, and which a reader still gets.

        Raises: DataError when there is none, or its arrays do not count the same samples.
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
        """Bytes of the largest batch, from a few samples; None where none is made of few samples.

        Functions of the user's are called on a few samples only where a batch has many.
        """
        source, few = self._source, FEW_SAMPLES
        if not isinstance(source, Indexed) or source.reader is None:
            return None
        samples = source.largest_batch
        has_functions = any(operator.name == "map" for operator in self.operators)
        if samples < (MANY_SAMPLES if has_functions else few):
            return None
        try:
            batch = arrays_of(source.read_few(few), StageClock())
        except Exception:  # the first batch is to tell what is wrong
            return None
        if any(array.shape[:1] != (few,) for array in batch):
            return None  # what a function makes of a batch does not grow with it
        return sum(array.nbytes for array in batch) * samples // few

    def names(self, arrays: int) -> list[str]:
        """The names of a batch's arrays, so many: `features`, `features/ids`, `labels`, …

        They are known from the first batch on.
        """
        return self._elements.names(arrays)

    def nested(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Values, one for each array of a batch, as the batch nests: (features, labels)."""
        return self._elements.given(values)

    def held(self, batch: Sequence[Any]) -> "Dataset":
        """One batch of this data set, its arrays in their order, again and again."""
        again = Dataset.from_batches(repeat({f"array_{n}": x for n, x in enumerate(batch)}))
        return Dataset(again._source, Level.BATCH, again.operators, self._elements)

    def deliveries(
        self, start: int = 0, stride: int = 1, clock: StageClock | None = None
    ) -> Iterator[Delivery]:
        """Batches start, start + stride, … of a run's, each with where its samples come from.

        Rows of arrays are not copied before the delivery is asked for them. clock: times this
        reader in the place of the data set's own.

        Raises: DataError when the data set is empty, not batched, or sharded for other streamers
        """
        start, stride = self._shards.local(start, stride)
        keep_freed_memory()
        source = self._source
        clock = clock or self.clock
        if isinstance(source, Indexed):
            nonempty(source)
            return source.deliveries(start, stride, self._threads, self._ahead, clock)
        if start or stride > 1:
            self._opening.warn_of_replay(*why_in_turn(self.operators))
        flow = self._batched(source)
        return self._opening.deliveries(flow, start, stride, self._ahead, clock)

    def batches(
        self, start: int = 0, stride: int = 1, clock: StageClock | None = None
    ) -> Generator[Batch]:
        """Batches start, start + stride, start + 2·stride, … of a run's.

        Raises: as `deliveries`
        """
        deliveries = self.deliveries(start, stride, clock)
        return (arrays_of(delivery.batch, clock or self.clock) for delivery in deliveries)

    def __iter__(self) -> Iterator[Batch]:
        """All batches, from the first."""
        return self.batches()

    def _then(
        self, name: str, source: Source, options: Mapping[str, Any] = {}, **changes: Any
    ) -> "Dataset":
        return self._with(source, self._operator(name, options), **changes)

    def _with(self, source: Source, operator: Operator, **changes: Any) -> "Dataset":
        operators = (*self.operators, operator)
        return replace(self, _source=source, operators=operators, **{"_files": None, **changes})

    def _operator(self, name: str, options: Mapping[str, Any]) -> Operator:
        return Operator(name, self._level, options, call_site())

    def _batched(self, flow: Flow) -> Flow:
        if self._level is Level.SAMPLE:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return flow


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
