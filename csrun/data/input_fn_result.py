"""Conversion of an input function's result to a Dataset."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from csrun.data.dataset import Dataset
from csrun.data.errors import DataError, require


def as_dataset(data: Any) -> Dataset:
    """Convert an input function's result to a Dataset.

    Raises: DataError for anything but a Dataset or an iterable of batches
    """
    if isinstance(data, Dataset):
        return data
    iterable = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    rule = "must return a csrun.data.Dataset or an iterable of batches"
    fine = iterable and not isinstance(data, str | bytes | type)
    require(fine, "input_fn", rule, type(data).__name__)
    if _is_data(data):
        raise DataError(
            f"input_fn: {rule}, got unbatched data of type {type(data).__name__}: return "
            "Dataset.from_arrays(features, labels).batch(batch_size)"
        )
    return Dataset.from_batches(data)


def _is_data(data: Any) -> bool:
    """True for arrays, or a tuple or dict of them: unbatched data, or a single batch."""
    if isinstance(data, tuple):
        return bool(data) and all(isinstance(part, np.ndarray) for part in data)
    return isinstance(data, Mapping | np.ndarray)
