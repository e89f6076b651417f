"""Arguments of Keras's `fit`: data as csrun reads it, and those that are refused by name."""

import logging
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import UsageError
from csrun.data import DataError, Dataset
from csrun.keras.fit_loop import Validation

log = logging.getLogger("csrun")
Array = npt.NDArray[Any]

SLOW_SHARE = 0.25  # of batch_size, below which an evaluation is much slower

#: Replacements of unsupported arguments.
_INSTEAD_OF_ARGUMENT = {
    "initial_epoch": "leave it out: a training resumes from its newest checkpoint",
}


def require_supported(others: Mapping[str, Any]) -> None:
    """Raises: UsageError for an argument that csrun's `fit` does not have"""
    for name, value in others.items():
        if name != "verbose" and value is not None:
            instead = _INSTEAD_OF_ARGUMENT.get(name, "leave it out")
            raise UsageError(f"fit: {name} is not supported: {instead}")


def require_no_steps(steps: int | None, option: str) -> None:
    """Raises: UsageError for a number of batches of arrays"""
    if steps is not None:
        raise UsageError(
            f"fit: {option} is not supported for arrays, whose batches are all used: leave it out, "
            "or pass an iterable of batches"
        )


def arrays_of(
    x: Any, y: Any, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None
) -> tuple[Any, ...]:
    """Return features, and, if given, labels and sample weights.

    Source: keras.Model.fit: class_weight has the weights of labels, 1 for those that it lacks

    Raises: UsageError for both weights, or for labels that are not classes
    """
    if y is None:
        if sample_weight is not None or class_weight is not None:
            raise UsageError("fit: weights need labels: give y")
        return (_nested(x),)
    if class_weight is None:
        arrays = (x, y) if sample_weight is None else (x, y, sample_weight)
        return tuple(map(_nested, arrays))
    if sample_weight is not None:
        raise UsageError("fit: give one of sample_weight and class_weight, not both")
    labels = _classes(y)
    weights = {int(label): float(weight) for label, weight in class_weight.items()}
    found = [weights.get(int(label), 1.0) for label in labels]
    return _nested(x), y, np.asarray(found, np.float32)


def _classes(y: Any) -> Array:
    """The class of each sample, from labels [B], [B, 1] or one-hot [B, C]."""
    if isinstance(y, Mapping | tuple | list):
        raise UsageError("fit: class_weight needs one array of labels: give sample_weight")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return np.asarray(labels.argmax(axis=1))
    if labels.size != len(labels):
        raise UsageError(
            f"fit: class_weight needs labels of shape [samples], got {list(labels.shape)}: give "
            "sample_weight"
        )
    return labels.reshape(-1)


def split_off(share: float, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return features, labels and weights of the training, and those of a `validation_split`.

    Source: keras.Model.fit: the last samples, before they are shuffled

    Raises: UsageError without labels, for a share that leaves no samples for one of the two
    """
    if arrays[1] is None:
        raise UsageError("fit: validation_split needs labels: give y")
    given = tuple(map(_nested, arrays))
    samples = _length(given[1])
    at = floor(samples * (1.0 - share))
    if not 0 < at < samples:
        raise UsageError(
            f"fit: validation_split={share} of {samples} samples leaves none for the training or "
            "none for the validation: use another share between 0 and 1, or more samples"
        )
    return _rows(given, slice(at)), _rows(given, slice(at, None))


def _rows(arrays: Any, rows: slice) -> Any:
    if isinstance(arrays, Mapping):
        return {key: _rows(value, rows) for key, value in arrays.items()}
    return (
        tuple(_rows(each, rows) for each in arrays) if isinstance(arrays, tuple) else arrays[rows]
    )


def validation_of(
    validation_data: Any, batch_size: int, frequency: int | Sequence[int], multiple: int
) -> Validation:
    """All validation samples, in batches of one size, at most `batch_size`.

    validation_data: features, labels and perhaps weights
    multiple: of which the size must be a multiple, for the systems and their micro-batches

    Raises: UsageError for another form, for arrays that are no data set, and if there is no size
    """
    if hasattr(validation_data, "shape"):
        validation_data = (validation_data,)
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (1, 2, 3):
        raise UsageError("fit: validation_data must be x, (x, y) or (x, y, sample_weight)")
    arrays = tuple(map(_nested, validation_data))
    try:
        dataset = Dataset.from_arrays(*arrays)
    except DataError as error:
        raise UsageError(f"fit: validation_data: {error}") from error
    samples = _length(arrays[0])
    most = min(batch_size, samples)
    sizes = (each for each in range(most, 0, -1) if samples % each == 0 == each % multiple)
    if (size := next(sizes, None)) is None:
        raise UsageError(
            f"fit: validation_data has {samples} samples, which no batch of at most {batch_size} "
            f"samples divides that is a multiple of num_csx x micro_batch_size = {multiple}: use a "
            f"multiple of {multiple} samples"
        )
    if size < SLOW_SHARE * most:
        log.warning(
            "fit: validation_data has %d samples, which are evaluated in batches of %d, since no "
            "larger number up to batch_size %d divides it: use a multiple of batch_size",
            samples,
            size,
            batch_size,
        )
    return Validation(dataset.batch(size), samples // size, frequency)


def _nested(arrays: Any) -> Any:
    """The arrays of an argument, with tuples in the place of lists of arrays, which Keras takes."""
    if isinstance(arrays, Mapping):
        return {key: _nested(value) for key, value in arrays.items()}
    if isinstance(arrays, list) and not any(len(getattr(each, "shape", ())) for each in arrays):
        return arrays  # of numbers
    return tuple(map(_nested, arrays)) if isinstance(arrays, tuple | list) else arrays


def steps_of(arrays: tuple[Any, ...], batch_size: int) -> int:
    """Return the steps of an epoch; warn of samples that are left over.

    Raises: UsageError for fewer samples than a batch
    """
    samples = _length(arrays[0])
    if samples < batch_size:
        raise UsageError(f"fit: batch_size {batch_size} exceeds the {samples} samples: lower it")
    if unused := samples % batch_size:
        log.warning(
            "fit: %d of %d samples are not used in each epoch, since batch_size %d does not divide "
            "them: use a batch_size that does",
            unused,
            samples,
            batch_size,
        )
    return samples // batch_size


def _length(arrays: Any) -> int:
    """Samples of an array, or of a tuple or dict of arrays."""
    if isinstance(arrays, Mapping):
        return _length(tuple(arrays.values()))
    return _length(arrays[0]) if isinstance(arrays, tuple) else len(arrays)
