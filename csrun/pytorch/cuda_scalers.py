"""CUDA loss scalers on machines without CUDA, where PyTorch would disable them."""

from functools import wraps
from inspect import signature
from typing import Any

import torch

_Scaler = torch.amp.GradScaler


def make_cuda_scalers_work() -> None:
    """Create CUDA scalers as CPU scalers from now on, if there is no CUDA.

    Their arguments and state are kept before, in and after a Session's block.
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
