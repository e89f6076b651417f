"""Helpers of the script that act once per job, in the chief."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.context import current
from csrun.pytorch.errors import user_line
from csrun.pytorch.settings import is_chief
from csrun.pytorch.user import active


def master_print(*values: Any, **options: Any) -> None:
    """`print`, in the chief only."""
    if is_chief(current()):
        print(*values, **options)


def save(obj: Any, path: str | Path) -> None:
    """`torch.save`, only in the chief, which has the trained values."""
    if is_chief(current()):
        torch.save(obj, path)


def summarize_scalar(name: str, value: Any) -> None:
    """Write a value of this step to the event files; this reads the value.

    Raises: UsageError outside a Session
    """
    if not active:
        raise UsageError(
            f"{user_line()}: cbtorch.summarize_scalar must be called in a Session's block"
        )
    active[-1].summarize(name, value)


def step_closure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function to run in the chief, with plain numbers in place of the loop's
    tensors.
    """

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_chief(current()):
            return None
        return function(*map(_read, args), **{name: _read(v) for name, v in kwargs.items()})

    return called


def _read(value: Any) -> Any:
    read = getattr(value, "tensor", None)
    return read() if read is not None and not isinstance(value, torch.Tensor) else value
