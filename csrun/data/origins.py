"""Where a sample comes from, for the messages that name it."""

from collections.abc import Sequence
from typing import NamedTuple


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
