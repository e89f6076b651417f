"""The check that runconfig.check_numerics asks for: no NaN and no Inf in a batch."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.errors import CsrunError
from csrun.executable import InputSpec
from csrun.executable.bind import Array


def require_finite(
    arrays: Sequence[Array], rows: int, inputs: tuple[InputSpec, ...], index: int
) -> None:
    """See that the valid rows of a batch are finite in what the model computes with.

    Two passes over the data and no temporary: a NaN is both the minimum and the maximum.

    Raises: CsrunError naming the first bad row, the array, and how many values are bad
    """
    for array, spec in zip(arrays, inputs, strict=True):
        values = array[:rows]
        if values.dtype.kind != "f" or not values.size:
            continue
        if not (isfinite(values.min()) and isfinite(values.max())):
            raise CsrunError(_message(values, spec, index))


def _message(values: npt.NDArray[Any], spec: InputSpec, index: int) -> str:
    bad = ~np.isfinite(values.reshape(len(values), -1))
    row = int(np.flatnonzero(bad.any(axis=1))[0])
    nans, count = int(np.isnan(values).sum()), int(bad.sum())
    sample = index * spec.shape[0] + row
    return (
        f"batch {index}, row {row} (sample {sample} of the run): {spec.name} is not finite; the "
        f"batch has {nans} NaN and {count - nans} Inf in {int(bad.any(axis=1).sum())} rows as "
        f"{spec.dtype}: clean the data, or drop such samples in input_fn"
    )
