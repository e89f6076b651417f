"""Methods of tensors that read numbers by no operator that a dispatch mode sees."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

_READS = ("tolist", "__repr__", "__reduce_ex__")


@contextmanager
def hidden_reads(look: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Have `look` called with a tensor before one of these methods reads it."""
    with ExitStack() as opened:
        for name in _READS:
            opened.callback(_put_back, name, torch.Tensor.__dict__.get(name))
            setattr(torch.Tensor, name, _looking(look, getattr(torch.Tensor, name)))
        yield


def _looking(look: Callable[[torch.Tensor], None], own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        look(tensor)
        return own(tensor, *args, **kwargs)

    return read


def _put_back(name: str, had: Any) -> None:
    if had is None:  # TensorBase's
        delattr(torch.Tensor, name)
    else:
        setattr(torch.Tensor, name, had)
