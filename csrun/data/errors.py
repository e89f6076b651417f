"""Errors of the user's data, and names of samples in messages."""

from collections.abc import Sequence
from typing import NamedTuple

from csrun.base.errors import CsrunError, UsageError


class DataError(CsrunError):
    """A data set that cannot be read or used."""


class UnusableArraysError(DataError, UsageError):
    """Arrays that are not a data set, found before anything runs."""


class UnusableLoaderError(DataError, UsageError):
    """A DataLoader, or batch of one, that a Session cannot train on."""


class UnequalBatchesError(UnusableLoaderError):
    """A batch that streamers cannot put into arrays of the first batch's shapes.

    what: how it differs.
    """

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}: {remedy}")
        self.what = what


class PassEndedError(DataError):
    """A batch beyond the end of a pass of unknown length."""


def require(condition: bool, where: str, rule: str, got: object) -> None:
    """Raise a DataError with the rule and the value unless `condition` holds."""
    if not condition:
        raise DataError(f"{where}: {rule}, got {got}")


class BatchOrigin(NamedTuple):
    """Origin of a batch from an iterable, without sample indices."""

    number: int


Place = tuple[str, int]  # file ('' for arrays in memory), index of the sample in it
Origin = Place | BatchOrigin


def text_of(origin: Origin) -> str:
    """Name an origin: `sample 17`, `sample 17 of train.tfrecord`, or `batch 3`."""
    if isinstance(origin, BatchOrigin):
        return f"batch {origin.number}"
    file, number = origin
    return f"sample {number} of {file}" if file else f"sample {number}"


def span_of(origins: Sequence[Origin]) -> str:
    """Name the samples of a batch, by the first and the last."""
    if len(origins) == 1:
        return text_of(origins[0])
    return f"{text_of(origins[0])} to {text_of(origins[-1])}"
