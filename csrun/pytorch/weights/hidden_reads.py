"""Hook on tensor methods that read values without an operator that dispatch modes see."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from csrun.pytorch.errors import is_users_call

_READS = ("tolist", "__repr__", "__reduce_ex__")
_SHARES = ("numpy", "__dlpack__")  # called by np.asarray and np.from_dlpack


@contextmanager
def hidden_reads(
    on_read: Callable[[torch.Tensor], None], on_share: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """Context manager that calls `on_read` with a tensor before a method reads it.

    on_share: called if the user's code gets an array of its memory, which it may write.
    """

    def share(tensor: torch.Tensor) -> None:
        if is_users_call(above=3):
            on_share(tensor)

    hooks = dict.fromkeys(_READS, on_read) | dict.fromkeys(_SHARES, share)
    with ExitStack() as opened:
        for name, hook in hooks.items():
            opened.callback(_restore, name, torch.Tensor.__dict__.get(name))
            setattr(torch.Tensor, name, _with_hook(hook, getattr(torch.Tensor, name)))
        yield


def _with_hook(hook: Callable[[torch.Tensor], None], own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        hook(tensor)
        return own(tensor, *args, **kwargs)

    return read


def _restore(name: str, had: Any) -> None:
    if had is None:  # TensorBase's
        delattr(torch.Tensor, name)
    else:
        setattr(torch.Tensor, name, had)
