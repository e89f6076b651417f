"""Values of a model for the event files, written at each logging step of a training."""

from enum import StrEnum

from csrun.nn.errors import TraceError, user_line
from csrun.nn.signature import checked
from csrun.nn.tensor import Tensor, require_tensor


class SummaryKind(StrEnum):
    """What of a tensor goes into the events."""

    SCALAR = "scalar"
    HISTOGRAM = "histogram"


@checked
def scalar(name: str, tensor: Tensor) -> None:
    """The mean of a tensor's values over the batch's valid rows.

    Raises: TraceError for a name that is empty or taken
    """
    _add(SummaryKind.SCALAR, name, tensor)


@checked
def histogram(name: str, tensor: Tensor) -> None:
    """How a tensor's values are distributed over the batch's valid rows.

    Raises: TraceError for a name that is empty or taken
    """
    _add(SummaryKind.HISTOGRAM, name, tensor)


def _add(kind: SummaryKind, name: str, tensor: Tensor) -> None:
    taken = require_tensor(f"summary.{kind}", tensor).tracer.summaries
    if not name or name in taken:
        raise TraceError(
            f"{user_line()}: summary.{kind}: a name must be given and be unique, got {name!r}"
        )
    taken[name] = (kind, tensor)
