"""batch: consecutive samples in batches, padded if their shapes differ."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from csrun.data.delivery import LazyBatch, require_numbers
from csrun.data.errors import DataError, Origin, require, text_of
from csrun.data.flow import Chunks, Flow, Source, in_chunks
from csrun.data.formats.base import Array, Sample
from csrun.data.indexed import Indexed, Range
from csrun.data.input_operators import StageClock
from csrun.data.samples import ArraySamples, Batch, JoinedSamples

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Padding:
    """Padding of each array of a sample: its shape, None to leave it unchanged, and the value."""

    shapes: tuple[Shape | None, ...]
    values: tuple[float, ...]


def batched(
    source: Source, batch_size: int, drop_remainder: bool, padding: Padding | None
) -> Source:
    """Convert a source of samples to one of batches."""
    if not isinstance(source, Indexed):
        return BatchFlow(source, batch_size, drop_remainder, padding)
    count = source.order.length
    if count is not None:
        count = count // batch_size if drop_remainder else -(-count // batch_size)
    return replace(
        source,
        batch_size=batch_size,
        drop_remainder=drop_remainder,
        batches=Range(count),
        reader=CutBatches(padding),
    )


@dataclass(frozen=True)
class CutBatches:
    """Batches of consecutive samples; rows of arrays are copied when written."""

    padding: Padding | None

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch | LazyBatch:
        """Read a batch by number.

        Shapes: out[i] [rows, *shape of array i of a sample]
        """
        rows = chain.rows(number)
        # Rows of arrays need no batch in between: they are copied once, into the wafer's arrays.
        if isinstance(chain.samples, ArraySamples | JoinedSamples) and self.padding is None:
            return LazyBatch(chain.samples, rows)
        samples = chain.samples.each(rows, clock)
        with clock.timed("batch"):
            return stacked(samples, self.padding, chain.origins(number))


@dataclass(frozen=True)
class BatchFlow:
    """Stream of batches of consecutive samples."""

    below: Flow
    batch_size: int
    drop_remainder: bool
    padding: Padding | None

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        samples = chain.from_iterable(self.below.open(epoch, clock))
        for group in in_chunks(samples, self.batch_size):
            if len(group) < self.batch_size and self.drop_remainder:
                return
            with clock.timed("batch"):
                origins = tuple(origin for (origin,), _ in group)
                batch = stacked([sample for _, sample in group], self.padding, origins)
            yield [(origins, require_numbers(batch))]


def padding_of(shapes: Sequence[Any], values: Any) -> Padding:
    """Return the padding of `batch(padded_shapes=…, padding_values=…)`.

    Raises: DataError if the arguments do not match
    """
    rule = "padded_shapes must be integers, as all batches of a run have the same shape"
    for shape in shapes:
        sized = shape is None or all(isinstance(n, int | np.integer) and n >= 0 for n in shape)
        require(sized, "batch", rule, shape)
    wanted = tuple(None if shape is None else tuple(map(int, shape)) for shape in shapes)
    given = tuple(values) if isinstance(values, tuple | list) else (values,) * len(wanted)
    rule = "padding_values must be one value, or one per shape of padded_shapes"
    require(len(given) == len(wanted), "batch", rule, values)
    return Padding(wanted, given)


def stacked(
    samples: Sequence[Sample], padding: Padding | None, origins: Sequence[Origin]
) -> Sample:
    """Stack samples as rows of arrays.

    Shapes: samples[b][i] [*shape_i] -> out[i] [len(samples), *shape_i]
    Raises: DataError for samples of different shapes, or larger than the padding
    """
    columns = list(zip(*samples, strict=True)) if _same_length(samples, origins) else []
    if padding is not None:
        return _padded(columns, padding, origins)
    for number, column in enumerate(columns):
        for sample, origin in zip(column, origins, strict=True):
            if sample.shape != column[0].shape:
                raise DataError(
                    f"batch: array {number} of {text_of(origin)} has shape {sample.shape}, that of "
                    f"{text_of(origins[0])} {column[0].shape}: pass padded_shapes to batch()"
                )
    return tuple(np.stack(column) for column in columns)


def _same_length(samples: Sequence[Sample], origins: Sequence[Origin]) -> bool:
    for sample, origin in zip(samples, origins, strict=True):
        rule = f"a sample must have {len(samples[0])} arrays as {text_of(origins[0])} has"
        require(len(sample) == len(samples[0]), text_of(origin), rule, len(sample))
    return True


def _padded(columns: list[Any], padding: Padding, origins: Sequence[Origin]) -> Sample:
    rule = f"padded_shapes must have one shape per array of a sample ({len(columns)})"
    require(len(columns) == len(padding.shapes), "batch", rule, len(padding.shapes))
    return tuple(
        np.stack(column) if shape is None else _filled_up(column, shape, value, origins)
        for column, shape, value in zip(columns, padding.shapes, padding.values, strict=True)
    )


def _filled_up(column: Any, shape: Shape, value: float, origins: Sequence[Origin]) -> Array:
    out = np.full((len(column), *shape), value, column[0].dtype)
    for row, sample in enumerate(column):
        fits = sample.ndim == len(shape) and all(
            n <= most for n, most in zip(sample.shape, shape, strict=True)
        )
        rule = f"must fit into padded_shapes' {shape}"
        require(fits, f"batch: {text_of(origins[row])}", rule, f"shape {sample.shape}")
        place: tuple[Any, ...] = (row, *(slice(n) for n in sample.shape))
        out[place] = sample
    return out
