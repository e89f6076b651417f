"""Dataset: a lazy chain of operations, read a batch at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from csrun.data.errors import DataError, require
from csrun.data.indexed import Batch, Indexed, MapFunction, as_batch, from_arrays
from csrun.data.order import Repeat, Shard, Shuffle
from csrun.data.prefetch import prefetched
from csrun.data.stream import Stream


class ArraySpec(msgspec.Struct, frozen=True):
    """Shape and dtype of one array of a batch."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Dataset:
    """Batches of samples; every operation gives a new data set and touches no data.

    Operations mean what they mean in tf.data, in the order in which they are called:
    `shuffle().repeat()` shuffles anew each pass, and `repeat().batch()` fills batches across the
    border of two passes.
    """

    _source: Indexed | Stream
    _maps: tuple[MapFunction, ...] = ()
    _ahead: int = 0

    @staticmethod
    def from_arrays(*arrays: Any) -> "Dataset":
        """Samples along the first axis of equally long arrays (memory-mapped ones too).

        Raises: DataError for arrays of unequal length, or without samples.
        """
        return Dataset(from_arrays(*arrays))

    @staticmethod
    def from_batches(batches: Iterable[Any]) -> "Dataset":
        """Batches as an iterable gives them: tuples of arrays or torch tensors, in turn only."""
        return Dataset(Stream(batches))

    def shuffle(self, seed: int = 0) -> "Dataset":
        """A full permutation, another one each pass, fixed by the seed."""
        require(0 <= seed < 2**64, "shuffle", "seed must be in 0..2^64-1", seed)
        source = self._indexed("shuffle")
        require(source.order.length is not None, "shuffle", "shuffle before repeat", "endless data")
        return replace(self, _source=source.ordered(Shuffle(source.order, seed)))

    def repeat(self, count: int | None = None) -> "Dataset":
        """`count` passes over the data, endless when None."""
        require(count is None or count > 0, "repeat", "count must be positive", count)
        source = self._indexed("repeat")
        return replace(self, _source=source.ordered(Repeat(source.order, count)))

    def shard(self, count: int, index: int) -> "Dataset":
        """Every `count`-th element (sample, or batch after `batch`), from `index` on."""
        require(0 <= index < count, "shard", f"index must be in 0..{count - 1}", index)
        source = self._indexed("shard")
        return replace(self, _source=source.ordered(Shard(source.order, count, index)))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Consecutive samples in batches; an incomplete last one is kept unless dropped."""
        require(batch_size > 0, "batch", "batch_size must be positive", batch_size)
        return replace(self, _source=self._indexed("batch").batched(batch_size, drop_remainder))

    def map(self, function: MapFunction) -> "Dataset":
        """Apply a function of the arrays: after `batch` to whole batches, before it to each sample.

        Mapping whole batches is many times faster. The function must depend on its arguments alone.
        """
        source = self._source
        if isinstance(source, Indexed) and source.batches is None:
            return replace(self, _source=replace(source, maps=(*source.maps, function)))
        return replace(self, _maps=(*self._maps, function))

    def prefetch(self, ahead: int) -> "Dataset":
        """Produce up to `ahead` batches on a thread before they are asked for."""
        require(ahead > 0, "prefetch", "the number of batches must be positive", ahead)
        return replace(self, _ahead=ahead)

    @property
    def indexable(self) -> bool:
        """Whether a batch can be read without those before it."""
        return isinstance(self._source, Indexed)

    @property
    def cardinality(self) -> int | None:
        """Batches of the data set; None when endless, or not known beforehand."""
        return self._source.cardinality if isinstance(self._source, Indexed) else None

    def element_spec(self) -> tuple[ArraySpec, ...]:
        """Shapes and dtypes of the first batch.

        Raises: DataError when there is none.
        """
        if isinstance(self._source, Indexed):
            first = self._mapped(self._nonempty(self._source).read(0))
        else:
            first = self._mapped(self._source.first())
        return tuple(ArraySpec(array.shape, array.dtype.name) for array in first)

    def batches(self, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        """Batches start, start + stride, start + 2·stride, … of the data set.

        Raises: DataError when the data set is empty or not batched.
        """
        source = self._source
        if isinstance(source, Stream):
            raw = source.read(start, stride)
        else:
            raw = map(self._nonempty(source).read, _positions(start, stride, source.cardinality))
        batches = map(self._mapped, raw) if self._maps else raw
        return prefetched(batches, self._ahead) if self._ahead else batches

    def __iter__(self) -> Iterator[Batch]:
        """All batches, from the first."""
        return self.batches()

    def _mapped(self, batch: Batch) -> Batch:
        for function in self._maps:
            batch = as_batch(function(*batch))
        return batch

    def _indexed(self, operation: str) -> Indexed:
        if isinstance(self._source, Stream):
            raise DataError(
                f"{operation}: needs a data set made by from_arrays; a stream of batches has its "
                "order already"
            )
        return self._source

    @staticmethod
    def _nonempty(source: Indexed) -> Indexed:
        if source.cardinality == 0:
            raise DataError(
                f"the data set is empty: {source.samples.length} samples of "
                f"{len(source.arrays[0])} give no batch of {source.batch_size}: lower batch_size, "
                "keep the remainder, or use fewer shards"
            )
        return source


def as_dataset(data: Any) -> Dataset:
    """What an input function returned, as a Dataset.

    Raises: DataError for anything but a Dataset or an iterable of batches.
    """
    if isinstance(data, Dataset):
        return data
    iterable = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    rule = "must return a csrun.data.Dataset or an iterable of batches"
    require(iterable and not isinstance(data, str | bytes), "input_fn", rule, type(data).__name__)
    return Dataset.from_batches(data)


def _positions(start: int, stride: int, cardinality: int | None) -> Iterator[int]:
    position = start
    while cardinality is None or position < cardinality:
        yield position
        position += stride
