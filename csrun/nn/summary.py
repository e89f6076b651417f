"""Summaries: values of a model in the event files, at each logging step of a training."""

from enum import StrEnum

from csrun.nn.errors import TraceError, user_line
from csrun.nn.signature import checked
from csrun.nn.tensor import Tensor, require_tensor


class SummaryKind(StrEnum):
    """Form in which a tensor goes into the event files."""

    SCALAR = "scalar"
    HISTOGRAM = "histogram"


@checked
def scalar(name: str, tensor: Tensor) -> None:
    """Mean of a tensor over the batch, without padding.

    Raises: TraceError for a name that is empty or taken
    """
    _add(SummaryKind.SCALAR, name, tensor)


@checked
def histogram(name: str, tensor: Tensor) -> None:
    """Histogram of a tensor over the batch, without padding.

    Raises: TraceError for a name that is empty or taken
    """
    _add(SummaryKind.HISTOGRAM, name, tensor)


def _add(kind: SummaryKind, name: str, tensor: Tensor) -> None:
    taken = require_tensor(f"summary.{kind}", tensor).tracer.summaries
    if not name or name in taken:
        raise TraceError(
            f"{user_line()}: summary.{kind}: the name must be unique and not empty, got {name!r}"
        )
    taken[name] = (kind, tensor)
