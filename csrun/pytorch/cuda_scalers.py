"""PyTorch's loss scalers for CUDA, on a machine without it, where they would be disabled."""

from functools import wraps
from inspect import signature
from typing import Any

import torch

_Scaler = torch.amp.GradScaler


def make_cuda_scalers_work() -> None:
    """From now on, create scalers for CUDA as scalers for the CPU if there is no CUDA.

    They then have the script's arguments and state, before, in and after a Session's block.
    """
    original = _Scaler.__init__
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def init(this: Any, *args: Any, **kwargs: Any) -> None:
        given = signature(original).bind(this, *args, **kwargs)
        given.apply_defaults()
        if given.arguments["device"] == "cuda" and not torch.cuda.is_available():
            given.arguments["device"] = "cpu"
        original(*given.args, **given.kwargs)

    _Scaler.__init__ = init
