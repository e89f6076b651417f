"""Gradient accumulation by the Model Zoo's params: the batches of a step are joined to one.

The mean of the gradients of `grad_accum_steps` batches is that of all their samples. csrun splits
such a batch into micro-batches where the wafer cannot hold it.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.data import Dataset, as_dataset

KEY = "grad_accum_steps"


def batches_of_step(params: Any) -> int:
    """Number of batches whose gradients a step of the params' optimizer accumulates.

    Raises: UsageError unless it is a positive integer
    """
    section = params.get("optimizer") if isinstance(params, Mapping) else None
    found = section.get(KEY, 1) if isinstance(section, Mapping) else 1
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise UsageError(f"params: optimizer.{KEY} must be an integer >= 1, got {found!r}")
    return found


def without_accumulation(params: Any) -> Any:
    """The params of a model_fn that gets joined batches."""
    if batches_of_step(params) == 1:
        return params
    changed = dict(params)
    changed["optimizer"] = {**params["optimizer"], KEY: 1}
    return changed


def joined(make: Callable[[Any], Any], count: int) -> Callable[[Any], Dataset]:
    """An input function whose batches are each so many of another's."""

    def make_joined(params: Any) -> Dataset:
        return Dataset.from_batches(JoinedBatches(as_dataset(make(params)), count))

    return make_joined


class JoinedBatches:
    """Batches of a data set, so many in one; those left at its end are dropped."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __iter__(self) -> Iterator[Any]:
        batches = self._dataset.batches()
        while len(group := [*islice(batches, self._count)]) == self._count:
            columns = [np.concatenate(arrays) for arrays in zip(*group, strict=True)]
            yield self._dataset.nested(columns)
