"""Delivery of a batch: arrays that are read when written, and the origins of the samples."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from csrun.data.errors import DataError, Origin
from csrun.data.input_operators import StageClock
from csrun.data.samples import ArraySamples, Batch, JoinedSamples, Rows

COPY_STAGE = "copy"  # a stage of the pipeline: copying into the wafer's arrays

KEPT_BYTES = 256 << 20  # largest array kept, and most memory kept free
LEAST_BYTES = 32 << 20  # accepted by every glibc; some refuse more
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt


class ArrayType(NamedTuple):
    """Shape and dtype of an array of a batch."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"


@dataclass(frozen=True)
class LazyBatch:
    """Batch of array rows, not copied yet."""

    samples: ArraySamples | JoinedSamples
    rows: Rows

    @property
    def kinds(self) -> tuple[ArrayType, ...]:
        """Kinds of its arrays."""
        shapes = self.samples.shapes(len(self.rows))
        return tuple(map(ArrayType, shapes, self.samples.dtypes))

    def arrays(self, clock: StageClock) -> Batch:
        return self.samples.gather(self.rows, clock)

    def write(self, outs: Batch, clock: StageClock) -> Batch:
        """Copy the rows directly into `outs`, through a temporary copy if converted."""
        pairs = zip(outs, self.samples.dtypes, strict=True)
        direct = [out if out.dtype == dtype else None for out, dtype in pairs]
        arrays = self.samples.gather(self.rows, clock, direct)
        if any(out is None for out in direct):
            with clock.timed(COPY_STAGE):
                for out, target, array in zip(outs, direct, arrays, strict=True):
                    if target is None:
                        np.copyto(out, array, casting="same_kind")
        return arrays


@dataclass(frozen=True)
class Delivery:
    """Batch of a data set, with the origins of its samples."""

    batch: Batch | LazyBatch
    origins: Callable[[], Sequence[Origin]]

    @property
    def kinds(self) -> tuple[ArrayType, ...]:
        """Kinds of its arrays, without reading them."""
        if isinstance(self.batch, LazyBatch):
            return self.batch.kinds
        return tuple(ArrayType(array.shape, array.dtype) for array in self.batch)

    def write(self, outs: Batch, clock: StageClock) -> Batch:
        """Write the batch into `outs`, converted to their dtypes.

        Returns the values before conversion, to detect those out of range of a smaller type.

        Shapes: outs[i] kinds[i].shape; of a dtype that kinds[i].dtype casts to as the same kind
        """
        if isinstance(self.batch, LazyBatch):
            return self.batch.write(outs, clock)
        with clock.timed(COPY_STAGE):
            for out, array in zip(outs, self.batch, strict=True):
                np.copyto(out, array, casting="same_kind")
        return self.batch


def arrays_of(batch: Batch | LazyBatch, clock: StageClock) -> Batch:
    """Return the arrays of a batch in new memory."""
    return batch.arrays(clock) if isinstance(batch, LazyBatch) else batch


def require_numbers(batch: Batch) -> Batch:
    """Return the batch.

    Raises: DataError for an array of Python objects
    """
    for part in batch:
        if part.dtype == object:
            held = type(next(iter(part.flat), None)).__name__
            raise DataError(f"input_fn: a batch must consist of numeric arrays, got {held}")
    return batch


@cache
def keep_freed_memory() -> None:
    """Make malloc keep up to `KEPT_BYTES` of freed memory for new arrays.

    Otherwise glibc returns large arrays to the kernel, and each batch of a `map` waits for new,
    zeroed pages. No effect with other C libraries.

    Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(MMAP_THRESHOLD, KEPT_BYTES) or mallopt(MMAP_THRESHOLD, LEAST_BYTES):
            mallopt(TRIM_THRESHOLD, KEPT_BYTES)
