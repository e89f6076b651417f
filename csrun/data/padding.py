"""Samples to a batch, filled up to one shape where they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.data.errors import DataError, require
from csrun.data.origins import Origin, text_of

Array = npt.NDArray[Any]
Sample = tuple[Array, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Padding:
    """What each array of a sample is filled up to: its shape, None for as it is, and with what."""

    shapes: tuple[Shape | None, ...]
    values: tuple[float, ...]


def padding_of(shapes: Sequence[Any], values: Any) -> Padding:
    """The padding that `batch(padded_shapes=…, padding_values=…)` asks for.

    Raises: DataError when they do not belong together
    """
    rule = "padded_shapes must be whole numbers, as all batches of a run have one shape"
    for shape in shapes:
        sized = shape is None or all(isinstance(n, int | np.integer) and n >= 0 for n in shape)
        require(sized, "batch", rule, shape)
    wanted = tuple(None if shape is None else tuple(map(int, shape)) for shape in shapes)
    given = tuple(values) if isinstance(values, tuple | list) else (values,) * len(wanted)
    rule = "padding_values must be one value, or one for each of padded_shapes"
    require(len(given) == len(wanted), "batch", rule, values)
    return Padding(wanted, given)


def stacked(
    samples: Sequence[Sample], padding: Padding | None, origins: Sequence[Origin]
) -> Sample:
    """Samples as the rows of arrays.

    Shapes: samples[b][i] [*shape_i] -> out[i] [len(samples), *shape_i]
    Raises: DataError for samples that differ in shape, or are larger than the padding
    """
    columns = list(zip(*samples, strict=True)) if _same_length(samples, origins) else []
    if padding is not None:
        return _padded(columns, padding, origins)
    for number, column in enumerate(columns):
        for sample, origin in zip(column, origins, strict=True):
            if sample.shape != column[0].shape:
                raise DataError(
                    f"batch: array {number} of {text_of(origin)} has shape {sample.shape}, that of "
                    f"{text_of(origins[0])} {column[0].shape}: give padded_shapes to batch()"
                )
    return tuple(np.stack(column) for column in columns)


def _same_length(samples: Sequence[Sample], origins: Sequence[Origin]) -> bool:
    for sample, origin in zip(samples, origins, strict=True):
        rule = f"a sample must have {len(samples[0])} arrays as {text_of(origins[0])} has"
        require(len(sample) == len(samples[0]), text_of(origin), rule, len(sample))
    return True


def _padded(columns: list[Any], padding: Padding, origins: Sequence[Origin]) -> Sample:
    rule = f"padded_shapes must name the {len(columns)} arrays of a sample"
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
