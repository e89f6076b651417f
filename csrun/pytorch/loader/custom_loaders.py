"""Passes over a DataLoader whose class overrides `__iter__`, such as Accelerate's.

Its `__iter__` runs on numbers in place of batches. It may look ahead, skip batches and mark the
last one, and each batch is still made when the loop gets it.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.iterated import length_of

_END = object()


@dataclass(frozen=True, eq=False, slots=True)
class BatchNumber:
    """A batch of a pass by its position."""

    position: int


def iterate_custom_loader(loader: "DataLoader[Any]", batches: Generator[Any]) -> Iterator[Any]:
    """Yield the batches of a pass as the loader's own `__iter__` does.

    Raises: UsageError where that changes batches or their order
    """
    own = type(loader).__iter__
    if own is DataLoader.__iter__:
        yield from batches
        return
    try:
        taken, length = 0, length_of(loader)
        with _numbers_for(loader):
            numbers = own(loader)
        while (number := _next(loader, numbers)) is not _END:
            position = _position(loader, number, taken)
            batch = _END
            for _ in range(taken, position + 1):
                batch = next(batches, _END)
            if batch is _END:
                return
            taken = position + 1
            yield batch
        if taken == length:
            next(batches, None)  # which ends the pass
    finally:
        batches.close()


def _next(loader: "DataLoader[Any]", numbers: Iterator[Any]) -> Any:
    with _numbers_for(loader):
        try:
            return next(numbers, _END)
        except (AttributeError, TypeError) as error:
            if BatchNumber.__name__ in str(error):
                raise _changes(loader) from error
            raise


def _position(loader: "DataLoader[Any]", number: Any, taken: int) -> int:
    if not isinstance(number, BatchNumber) or number.position < taken:
        raise _changes(loader)
    return number.position


def _changes(loader: "DataLoader[Any]") -> UsageError:
    return UsageError(
        f"{user_line()}: {type(loader).__name__}.__iter__ changes its batches or their order, "
        "which the streamers do not run: do it in the data set, its collate_fn or sampler"
    )


@contextmanager
def _numbers_for(loader: "DataLoader[Any]") -> Iterator[None]:
    """Have PyTorch's own iteration over the loader's data yield numbers."""
    plain = DataLoader.__iter__

    def numbers(each: "DataLoader[Any]") -> Any:
        if each.dataset is not loader.dataset:
            return plain(each)
        return map(BatchNumber, range(length_of(each)))

    DataLoader.__iter__ = numbers
    try:
        yield
    finally:
        DataLoader.__iter__ = plain
