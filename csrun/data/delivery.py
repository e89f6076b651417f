"""A batch on its way to who asked for it: read only where it is wanted, its samples known."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from csrun.data.errors import DataError, Origin
from csrun.data.operators import StageClock
from csrun.data.samples import ArraySamples, Batch, JoinedSamples, Rows

COPY_STAGE = "copy"  # of what a pipeline spends its time on: from its arrays to the wafer's

KEPT_BYTES = 256 << 20  # the largest array, and the most that stays free for the next one
LEAST_BYTES = 32 << 20  # what every glibc accepts; some refuse more
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt


class Kind(NamedTuple):
    """Shape and dtype of an array of a batch."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"


@dataclass(frozen=True)
class LazyBatch:
    """Rows of arrays that nobody has copied yet."""

    samples: ArraySamples | JoinedSamples
    rows: Rows

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of the arrays that it will be."""
        shapes = self.samples.shapes(len(self.rows))
        return tuple(map(Kind, shapes, self.samples.dtypes))

    def arrays(self, clock: StageClock) -> Batch:
        return self.samples.gather(self.rows, clock)

    def write(self, outs: Batch, clock: StageClock) -> Batch:
        """Copy the rows from where they lie right into `outs`, by way of a copy if converted."""
        pairs = zip(outs, self.samples.dtypes, strict=True)
        alike = [out if out.dtype == dtype else None for out, dtype in pairs]
        arrays = self.samples.gather(self.rows, clock, alike)
        if any(out is None for out in alike):
            with clock.timed(COPY_STAGE):
                for out, is_there, array in zip(outs, alike, arrays, strict=True):
                    if is_there is None:
                        np.copyto(out, array, casting="same_kind")
        return arrays


@dataclass(frozen=True)
class Delivery:
    """A batch of a data set as its reader hands it over. `origins` tells of its samples."""

    batch: Batch | LazyBatch
    origins: Callable[[], Sequence[Origin]]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of its arrays, before any of them is read."""
        if isinstance(self.batch, LazyBatch):
            return self.batch.kinds
        return tuple(Kind(array.shape, array.dtype) for array in self.batch)

    def write(self, outs: Batch, clock: StageClock) -> Batch:
        """Write the batch into the arrays that are handed in, converted where their dtype differs.

        The answer is the values before the conversion: what does not fit a smaller type is still
        seen in them.

        Shapes: outs[i] kinds[i].shape; of a dtype that kinds[i].dtype casts to as the same kind
        """
        if isinstance(self.batch, LazyBatch):
            return self.batch.write(outs, clock)
        with clock.timed(COPY_STAGE):
            for out, array in zip(outs, self.batch, strict=True):
                np.copyto(out, array, casting="same_kind")
        return self.batch


def arrays_of(batch: Batch | LazyBatch, clock: StageClock) -> Batch:
    """The arrays of a batch, in memory of their own."""
    return batch.arrays(clock) if isinstance(batch, LazyBatch) else batch


def require_numbers(batch: Batch) -> Batch:
    """The batch.

    Raises: DataError for an array of Python objects
    """
    for part in batch:
        if part.dtype == object:
            held = type(next(iter(part.flat), None)).__name__
            raise DataError(f"input_fn: a batch is made of arrays of numbers, got {held}")
    return batch


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to `KEPT_BYTES`, and make new arrays there.

    Without it the C library gives large arrays back to the kernel, and each batch of a `map` waits
    for new pages, which are filled with zeros first. Of another C library than glibc nothing is
    asked.

    Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(MMAP_THRESHOLD, KEPT_BYTES) or mallopt(MMAP_THRESHOLD, LEAST_BYTES):
            mallopt(TRIM_THRESHOLD, KEPT_BYTES)
