"""What is wrong with the user's data, and how a message names the sample that it is about."""

from collections.abc import Sequence
from typing import NamedTuple

from csrun.base.errors import CsrunError, UsageError


class DataError(CsrunError):
    """A data set that cannot be read, or cannot be used as it was asked for."""


class UnusableArraysError(DataError, UsageError):
    """Arrays that are no data set: found where the script hands them over, before anything runs."""


class UnusableLoaderError(DataError, UsageError):
    """A DataLoader, or a batch of it, that a Session cannot train on."""


def require(condition: bool, where: str, rule: str, got: object) -> None:
    """Raise a DataError that states the rule and the value, unless `condition` holds."""
    if not condition:
        raise DataError(f"{where}: {rule}, got {got}")


class WholeBatch(NamedTuple):
    """A batch that came whole, out of an iterable: nobody knows its samples' numbers."""

    number: int


Place = tuple[str, int]  # the file, empty for arrays in memory; the sample's number in it, from 0
Origin = Place | WholeBatch


def text_of(origin: Origin) -> str:
    """One sample, `sample 17`, `sample 17 of train.tfrecord`, or a whole batch, `batch 3`."""
    if isinstance(origin, WholeBatch):
        return f"batch {origin.number}"
    file, number = origin
    return f"sample {number} of {file}" if file else f"sample {number}"


def span_of(origins: Sequence[Origin]) -> str:
    """The samples of a batch, by the first and the last."""
    if len(origins) == 1:
        return text_of(origins[0])
    return f"{text_of(origins[0])} to {text_of(origins[-1])}"
