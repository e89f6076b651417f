"""Hook on tensor methods that read values without an operator that dispatch modes see."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

_READS = ("tolist", "__repr__", "__reduce_ex__")


@contextmanager
def hidden_reads(look: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `look` with a tensor before one of these methods reads it."""
    with ExitStack() as opened:
        for name in _READS:
            opened.callback(_restore, name, torch.Tensor.__dict__.get(name))
            setattr(torch.Tensor, name, _with_look(look, getattr(torch.Tensor, name)))
        yield


def _with_look(look: Callable[[torch.Tensor], None], own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        look(tensor)
        return own(tensor, *args, **kwargs)

    return read


def _restore(name: str, had: Any) -> None:
    if had is None:  # TensorBase's
        delattr(torch.Tensor, name)
    else:
        setattr(torch.Tensor, name, had)
