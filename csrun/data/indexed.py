"""Arrays in an order, a batch at a time: any batch can be read without those before it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.data.errors import DataError, require
from csrun.data.order import Order, Range

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]
MapFunction = Callable[..., Any]


@dataclass(frozen=True)
class Indexed:
    """Samples of equally long arrays, and, once batched, batches of them.

    samples: the order of samples; batches: the order of the batches cut from it, None before
    `batched`; maps: functions of one sample.
    """

    arrays: tuple[Array, ...]
    samples: Order
    batch_size: int = 0
    drop_remainder: bool = False
    batches: Order | None = None
    maps: tuple[MapFunction, ...] = ()

    @property
    def cardinality(self) -> int | None:
        """Batches of the data set, None when endless."""
        return self._batched().length

    @property
    def order(self) -> Order:
        """The order of what an operation on the data set sees: samples, or batches."""
        return self.batches or self.samples

    def ordered(self, order: Order) -> "Indexed":
        """The same elements in another order."""
        if self.batches is None:
            return replace(self, samples=order)
        return replace(self, batches=order)

    def batched(self, batch_size: int, drop_remainder: bool) -> "Indexed":
        """Consecutive samples in batches."""
        require(self.batches is None, "batch", "a data set is batched once", "a second batch()")
        count = self.samples.length
        if count is not None:
            count = count // batch_size if drop_remainder else -(-count // batch_size)
        return replace(
            self, batch_size=batch_size, drop_remainder=drop_remainder, batches=Range(count)
        )

    def read(self, position: int) -> Batch:
        """The batch at a position of the data set.

        Shapes: out[i] [rows, *arrays[i].shape[1:]] when nothing is mapped
        """
        number = int(self._batched().numbers(0, position, position + 1)[0])
        start, stop, epoch = self._extent(number)
        rows = self.samples.numbers(epoch, start, stop) % len(self.arrays[0])
        if not self.maps:
            return tuple(np.take(array, rows, axis=0, mode="clip") for array in self.arrays)
        samples = [self._mapped(int(row)) for row in rows]
        return tuple(np.stack(column) for column in zip(*samples, strict=True))

    def _batched(self) -> Order:
        if self.batches is None:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return self.batches

    def _extent(self, number: int) -> tuple[int, int, int]:
        """Sample positions of a batch, and the pass over the samples that it belongs to."""
        samples, epoch = self.samples.length, 0
        if samples is None:
            start = number * self.batch_size
            return start, start + self.batch_size, epoch
        whole, rest = divmod(samples, self.batch_size)
        epoch, number = divmod(number, whole + (rest > 0 and not self.drop_remainder))
        start = number * self.batch_size
        return start, min(start + self.batch_size, samples), epoch

    def _mapped(self, row: int) -> Batch:
        sample: Batch = tuple(array[row] for array in self.arrays)
        for function in self.maps:
            sample = as_batch(function(*sample))
        return sample


def as_batch(value: Any) -> Batch:
    """What a user's function or iterable gave, as a tuple of arrays; torch tensors become arrays.

    Raises: DataError for anything that is not an array or a tuple or list of arrays.
    """
    parts = value if isinstance(value, tuple | list) else (value,)
    batch = tuple(part if isinstance(part, np.ndarray) else np.asarray(part) for part in parts)
    for part in batch:
        require(part.dtype != object, "input_fn", "a batch is made of arrays", type(value).__name__)
    return batch


def from_arrays(*arrays: Any) -> Indexed:
    """The samples along the first axis of equally long arrays; nothing is copied.

    Raises: DataError for arrays of unequal length, or without samples.
    """
    require(bool(arrays), "from_arrays", "at least one array is needed", "none")
    held = tuple(np.asarray(array) for array in arrays)
    shapes = [array.shape for array in held]
    require(all(shapes), "from_arrays", "arrays need a first axis, the samples", f"shapes {shapes}")
    lengths = {len(array) for array in held}
    require(len(lengths) == 1, "from_arrays", "arrays must be equally long", f"shapes {shapes}")
    require(lengths != {0}, "from_arrays", "the data set must not be empty", f"shapes {shapes}")
    return Indexed(held, Range(len(held[0])))
