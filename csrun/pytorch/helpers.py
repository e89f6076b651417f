"""For code after the loop, and for what it says: once for the job, wherever the task runs."""

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
    """`print`, once for the job: in the chief."""
    if is_chief(current()):
        print(*values, **options)


def save(obj: Any, path: str | Path) -> None:
    """`torch.save` of what was trained, once for the job: in the chief, which alone has it."""
    if is_chief(current()):
        torch.save(obj, path)


def summarize_scalar(name: str, value: Any) -> None:
    """Write a number of this step into the run's events; it is read for that.

    Raises: UsageError outside of a Session
    """
    if not active:
        raise UsageError(
            f"{user_line()}: cbtorch.summarize_scalar must be called in a Session's block"
        )
    active[-1].summarize(name, value)


def step_closure(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gets numbers where it is given tensors of the loop, and runs in the chief."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_chief(current()):
            return None
        return function(*map(_read, args), **{name: _read(v) for name, v in kwargs.items()})

    return called


def _read(value: Any) -> Any:
    read = getattr(value, "tensor", None)
    return read() if read is not None and not isinstance(value, torch.Tensor) else value
