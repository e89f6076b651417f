"""A batch on its way: read only where it is wanted, mapped, its samples named when that fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from csrun.data.gather import Rows
from csrun.data.operators import Operator
from csrun.data.origins import Origin, WholeBatch, span_of, text_of
from csrun.data.samples import (
    ArraySamples,
    Batch,
    JoinedSamples,
    MapFunction,
    as_batch,
    failed_in,
)
from csrun.data.stage_clock import StageClock


@dataclass(frozen=True)
class LazyBatch:
    """Rows of arrays that nobody has copied yet."""

    samples: ArraySamples | JoinedSamples
    rows: Rows

    def arrays(self, clock: StageClock, slot: Batch | None = None) -> Batch:
        """Copies of the rows, in the first ones of a slot's arrays where these are alike.

        Shapes: slot[i] [at least as many rows, …]
        """
        samples, count = self.samples, len(self.rows)
        if slot is None or len(slot) != len(samples.dtypes):
            return samples.gather(self.rows, clock)
        heads = (array[:count] for array in slot)
        kinds = zip(heads, samples.shapes(count), samples.dtypes, strict=True)
        outs = [
            head if head.shape == shape and head.dtype == dtype else None
            for head, shape, dtype in kinds
        ]
        return samples.gather(self.rows, clock, outs)


@dataclass(frozen=True)
class Delivery:
    """A batch of a data set as its reader hands it over. `origins` tells of its samples."""

    batch: Batch | LazyBatch
    origins: Callable[[], Sequence[Origin]]


def mapped(
    function: MapFunction,
    batch: Batch,
    operator: Operator,
    origins: Callable[[], Sequence[Origin]],
    clock: StageClock,
) -> Batch:
    """`function(*batch)`; an exception of the function's gets a note that names the sample."""
    try:
        with clock.timed(operator.stage):
            return as_batch(function(*batch))
    except Exception as error:
        culprit = _culprit(function, batch, type(error), origins())
        error.add_note(failed_in(operator, culprit))
        raise


def _culprit(
    function: MapFunction, batch: Batch, kind: type[Exception], origins: Sequence[Origin]
) -> str:
    """The first sample that fails in the same way by itself; all of them when none does."""
    for row, name in enumerate(_row_names(batch, origins)):
        try:
            function(*(np.array(array[row : row + 1]) for array in batch))
        except kind:
            return name
        except Exception:
            continue
    return span_of(origins)


def _row_names(batch: Batch, origins: Sequence[Origin]) -> list[str]:
    first = origins[0]
    if not isinstance(first, WholeBatch):
        return [text_of(origin) for origin in origins]
    rows = min(len(array) if array.ndim else 0 for array in batch)
    return [f"{text_of(first)}, row {row}" for row in range(rows)]
