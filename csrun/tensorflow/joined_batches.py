"""Gradient accumulation by the Model Zoo's params: the batches of a step are joined to one.

The mean of the gradients of `grad_accum_steps` batches is that of all their samples. csrun splits
such a batch into micro-batches if it does not fit on the wafer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import UsageError
from csrun.data import DataError, Dataset, as_dataset

AnyArray = npt.NDArray[Any]
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
    """Return the params for a model_fn with joined batches."""
    if batches_of_step(params) == 1:
        return params
    changed = dict(params)
    changed["optimizer"] = {**params["optimizer"], KEY: 1}
    return changed


def joined(make: Callable[[Any], Any], count: int) -> Callable[[Any], Dataset]:
    """Return an input function whose batches each join several of another's."""

    def make_joined(params: Any) -> Dataset:
        return Dataset.from_batches(JoinedBatches(as_dataset(make(params)), count))

    return make_joined


class JoinedBatches:
    """Batches of a data set, joined in groups; an incomplete last group is dropped."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __iter__(self) -> Iterator[Any]:
        """Yield joined batches.

        Raises: DataError for a data set of fewer batches, and for arrays that cannot be joined
        """
        batches, first = self._dataset.batches(), 0
        while len(group := [*islice(batches, self._count)]) == self._count:
            names = self._dataset.names(len(group[0]))
            columns = zip(names, zip(*group, strict=True), strict=True)
            yield self._dataset.nested([_joined(name, arrays, first) for name, arrays in columns])
            first += self._count
        if not first:
            raise DataError(
                f"{KEY}={self._count}: the data set has only {len(group)} batches: give it more, "
                f"or lower {KEY}"
            )


def _joined(name: str, arrays: Sequence[AnyArray], first: int) -> AnyArray:
    """Join an array of several batches. first: number of the first of them."""
    for number, array in enumerate(arrays, first):
        if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
            other = f"that of batch {first} {arrays[0].shape}: pad the batches to one shape"
            why = other if array.ndim else "without samples: give it an axis of samples"
            raise DataError(
                f"{KEY}={len(arrays)}: {name} of batch {number} has shape {array.shape}, {why}"
            )
    return np.concatenate(arrays)
