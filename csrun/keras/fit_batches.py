"""Data of a fit that come in batches: tf.data, a PyDataset, a DataLoader, a generator."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.keras.fit_loop import Validation


@dataclass(frozen=True)
class FitData:
    """Training data of a fit. make: returns the batches of all epochs. steps: of an epoch."""

    make: Callable[[], Dataset]
    steps: int


def has_batches(x: Any) -> bool:
    """Return whether an argument gives batches, instead of being arrays of samples."""
    return not (x is None or hasattr(x, "shape") or isinstance(x, Mapping | tuple | list))


def training_batches(
    x: Any, steps: int | None, epochs: int, unsupported: Mapping[str, Any]
) -> FitData:
    """Return the training data of a fit on batches; an iterator is not restarted between
    epochs.

    steps: of an epoch; by default the number of batches. unsupported: arguments of arrays.

    Raises: UsageError for an argument of arrays, if the number of batches is not known, or if
        epochs would have different numbers of steps
    """
    for name, value in unsupported.items():
        if value is not None:
            raise UsageError(
                f"fit: {name} is supported for arrays only: put labels and sample weights into the "
                "batches of x, and validation samples into validation_data"
            )
    if steps is not None:
        _require_equal_epochs(x, steps, epochs)
    found = Dataset.from_batches(_in_order(x))
    dataset = found if isinstance(x, Iterator) else found.repeat()
    return FitData(lambda: dataset, _count(x, steps, "steps_per_epoch"))


def validation_batches(data: Any, steps: int | None, frequency: int | Sequence[int]) -> Validation:
    """Return validation data that come in batches.

    Raises: UsageError for an iterator, or if the number of batches is not known
    """
    if isinstance(data, Iterator):
        raise UsageError(
            f"fit: validation_data is a {type(data).__name__}, which can only be read once: "
            "pass arrays or an iterable that can be restarted"
        )
    dataset = Dataset.from_batches(_in_order(data))
    return Validation(dataset, _count(data, steps, "validation_steps"), frequency)


def _require_equal_epochs(x: Any, steps: int, epochs: int) -> None:
    """Raises: UsageError if an epoch reaches the end of the data, where Keras ends it early"""
    try:
        batches = len(x)
    except TypeError:
        return  # of unknown length
    if steps > 0 and batches < steps * epochs and batches % steps:
        raise UsageError(
            f"fit: steps_per_epoch={steps} does not divide the {batches} batches of x, so that "
            f"Keras would end an epoch after {batches % steps} steps: leave it out, or give a "
            f"divisor of {batches}"
        )


def _count(x: Any, steps: int | None, option: str) -> int:
    if steps is not None:
        return steps
    try:
        return len(x)
    except TypeError as error:
        raise UsageError(
            f"fit: the number of batches of a {type(x).__name__} is not known: give {option}"
        ) from error


def _in_order(x: Any) -> Iterable[Any]:
    """Return an iterable, for a PyDataset the batches in the order of their numbers.

    Raises: UsageError for a PyDataset that changes between epochs
    """
    if not any(kind.__name__ == "PyDataset" for kind in type(x).__mro__):
        return x  # type: ignore[no-any-return]
    for method in ("on_epoch_begin", "on_epoch_end"):
        if not getattr(type(x), method).__module__.startswith("keras."):
            raise UsageError(
                f"fit: {type(x).__name__}.{method} is not called, because each task reads the "
                "data separately: make each batch depend on its index only"
            )
    return _PyBatches(x)


@dataclass(frozen=True)
class _PyBatches:
    """Batches of a `keras.utils.PyDataset`."""

    dataset: Any

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self.dataset)):
            yield self.dataset[number]
