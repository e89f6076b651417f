"""The check that runconfig.check_numerics asks for: no NaN and no Inf in a batch."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError
from csrun.data.delivery import Delivery
from csrun.executable import InputSpec
from csrun.executable.bind import Array
from csrun.runtime.step.batch_names import BatchName


def require_finite(
    arrays: Sequence[Array],
    rows: int,
    inputs: tuple[InputSpec, ...],
    index: int,
    delivery: Delivery,
) -> None:
    """See that the valid rows of a slot, which a delivery has filled, are finite.

    Two passes over the data and no temporary: a NaN is both the minimum and the maximum.

    Raises: CsrunError naming the first bad row, the array, and how many values are bad
    """
    for array, spec in zip(arrays, inputs, strict=True):
        values = array[:rows]
        if values.dtype.kind != "f" or not values.size:
            continue
        if not (isfinite(values.min()) and isfinite(values.max())):
            raise CsrunError(_message(values, spec, BatchName(index, spec.shape[0], delivery)))


def _message(values: npt.NDArray[Any], spec: InputSpec, name: BatchName) -> str:
    bad = ~np.isfinite(values.reshape(len(values), -1))
    rows = np.flatnonzero(bad.any(axis=1))
    nans, count = int(np.isnan(values).sum()), int(bad.sum())
    return (
        f"{name.row(int(rows[0]), len(values))}: {spec.name} is not finite; the batch has "
        f"{nans} NaN and {count - nans} Inf as {spec.dtype}, rows with any: {len(rows)}: "
        "clean the data, or drop such samples in input_fn"
    )
