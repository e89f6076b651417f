"""What a batch must be for the program that was compiled, and how an error names its samples."""

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.data.delivery import Delivery, Kind
from csrun.data.errors import WholeBatch, text_of
from csrun.executable import InputSpec
from csrun.executable.bind import Array

Inputs = tuple[InputSpec, ...]


class BatchName(NamedTuple):
    """Global batch `number` of a run, of `size` rows when it is whole."""

    number: int
    size: int
    delivery: Delivery

    def __str__(self) -> str:
        return f"batch {self.number}"

    def with_samples(self, rows: int) -> str:
        """With the samples of the run that it has."""
        first = self.number * self.size
        return f"batch {self.number} (samples {first} to {first + rows - 1} of the run)"

    def row(self, row: int, rows: int) -> str:
        """One row of so many, with its sample as the source names it, if that knows its rows."""
        origins = self.delivery.origins()
        sample = f"sample {self.number * self.size + row} of the run"
        if len(origins) == rows and not isinstance(origins[0], WholeBatch):
            sample = text_of(origins[row])
        return f"batch {self.number}, row {row} ({sample})"


def rows_of_fitting(kinds: Sequence[Kind], inputs: Inputs, name: BatchName) -> int:
    """The rows of a batch, of which nothing has been read yet, that is as the first one was.

    Raises: CsrunError for another number of arrays, another shape, or a dtype of another kind
    """
    if len(kinds) != len(inputs):
        raise CsrunError(
            f"{name}: the model takes {len(inputs)} arrays, input_fn gave {len(kinds)}"
        )
    rows = _rows(kinds[0])
    for kind, spec in zip(kinds, inputs, strict=True):
        if kind.shape[1:] != spec.shape[1:] or not 0 < _rows(kind) <= spec.shape[0]:
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must have shape {_text(spec.shape)} as "
                f"the first batch had, for which the model was compiled, got {_text(kind.shape)}: "
                "give batches of one shape (only the last one may have fewer rows)"
            )
        if _rows(kind) != rows:
            raise CsrunError(f"{name}: {spec.name} has {_rows(kind)} rows, the others {rows}")
        if not np.can_cast(kind.dtype, spec.dtype, "same_kind"):
            raise CsrunError(
                f"{name.with_samples(rows)}: {spec.name} must be {spec.dtype} as the first batch "
                f"was, for which the model was compiled, got {kind.dtype}: convert it in input_fn"
            )
    return rows


def require_labels(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> None:
    """See that labels are classes. Asked of what the data set has: 2³² + 3 as an int32 is 3.

    Raises: CsrunError naming the first row with another one
    """
    for labels, spec in zip(arrays, inputs, strict=True):
        if spec.classes is not None:
            _require_classes(labels, spec, spec.classes, name)


def _require_classes(
    labels: npt.NDArray[Any], spec: InputSpec, classes: int, name: BatchName
) -> None:
    if labels.min() >= 0 and labels.max() < classes:
        return
    at = np.argwhere((labels < 0) | (labels >= classes))[0]
    raise CsrunError(
        f"{name.row(int(at[0]), len(labels))}: {spec.name} must be in 0..{classes - 1}, "
        f"got {labels[tuple(at)]}"
    )


def require_finite(arrays: Sequence[Array], inputs: Inputs, name: BatchName) -> None:
    """See that there is no NaN and no Inf, as `runconfig.check_numerics` asks for.

    Two passes over the data and no temporary: a NaN is both the minimum and the maximum. Asked of
    what the wafer gets: 1e300 is finite in a data set of float64, and not in a float32.

    Raises: CsrunError naming the first bad row, the array, and how many values are bad
    """
    for values, spec in zip(arrays, inputs, strict=True):
        if values.dtype.kind != "f" or not values.size:
            continue
        if not (isfinite(values.min()) and isfinite(values.max())):
            raise CsrunError(_not_finite(values, spec, name))


def _not_finite(values: npt.NDArray[Any], spec: InputSpec, name: BatchName) -> str:
    bad = ~np.isfinite(values.reshape(len(values), -1))
    rows = np.flatnonzero(bad.any(axis=1))
    nans, count = int(np.isnan(values).sum()), int(bad.sum())
    return (
        f"{name.row(int(rows[0]), len(values))}: {spec.name} is not finite; the batch has "
        f"{nans} NaN and {count - nans} Inf as {spec.dtype}, rows with any: {len(rows)}: "
        "clean the data, or drop such samples in input_fn"
    )


def _rows(kind: Kind) -> int:
    return kind.shape[0] if kind.shape else 0


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
