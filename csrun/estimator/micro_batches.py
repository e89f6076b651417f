"""Number of micro-batches of a batch: the configured one, or the least that fits."""

from typing import Literal

from csrun.base.errors import UsageError
from csrun.compiler import TooLargeError

AUTO: Literal["auto"] = "auto"  # the whole batch if it fits, else the largest micro-batch that does


def micro_batches_of(batch: int, micro_batch_size: int | Literal["auto"]) -> int:
    """Return the number of micro-batches to compile first.

    Raises: UsageError for a size that does not divide the batch
    """
    if micro_batch_size == AUTO:
        return 1
    require_divides("micro_batch_size", micro_batch_size, "batch_size", batch)
    return batch // micro_batch_size


def require_divides(name: str, value: int, of: str, number: int) -> None:
    """Check that a size divides a number.

    Raises: UsageError with the nearest sizes that do
    """
    if number % value == 0:
        return
    fitting = [m for m in range(1, number + 1) if number % m == 0]
    below = max(m for m in fitting if m < value)
    above = [m for m in fitting if m > value][:1]
    nearest = f"{below} or {above[0]}" if above else str(below)
    raise UsageError(f"runconfig.{name} must divide {of} {number}, got {value}: use {nearest}")


def next_size(batch: int, micro_batches: int, error: TooLargeError) -> int | None:
    """Return the next smaller size to try if this many micro-batches do not fit, or None."""
    most = min(error.fits, batch // micro_batches - 1)
    return next((size for size in range(most, 0, -1) if batch % size == 0), None)
