"""How many micro-batches a batch is cut into: as many as were asked for, or until it fits."""

from typing import Literal

from csrun.base.errors import UsageError
from csrun.compiler import TooLargeError

AUTO: Literal["auto"] = "auto"  # the whole batch where it fits, else the largest part that does


def micro_batches_of(batch: int, micro_batch_size: int | Literal["auto"]) -> int:
    """How many a batch is cut into before anything is compiled.

    Raises: UsageError for a size that does not divide the batch
    """
    if micro_batch_size == AUTO:
        return 1
    require_divides("micro_batch_size", micro_batch_size, "batch_size", batch)
    return batch // micro_batch_size


def require_divides(name: str, value: int, of: str, number: int) -> None:
    """Raises: UsageError with the two nearest that do."""
    if number % value == 0:
        return
    fitting = [m for m in range(1, number + 1) if number % m == 0]
    below = max(m for m in fitting if m < value)
    above = [m for m in fitting if m > value][:1]
    nearest = f"do are {below} and {above[0]}" if above else f"does is {below}"
    raise UsageError(
        f"runconfig.{name} must divide {of} {number}, got {value}: the nearest that {nearest}"
    )


def next_size(batch: int, micro_batches: int, error: TooLargeError) -> int | None:
    """The size to try where so many micro-batches do not fit; None where none will."""
    most = min(error.fits, batch // micro_batches - 1)
    return next((size for size in range(most, 0, -1) if batch % size == 0), None)
