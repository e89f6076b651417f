"""Constructor arguments of PyTorch's loss scalers.

A scaler for CUDA disables itself on a machine without CUDA, and drops them.
"""

from functools import wraps
from inspect import signature
from typing import Any
from warnings import catch_warnings, simplefilter
from weakref import WeakKeyDictionary

import torch

_Scaler = torch.amp.GradScaler
asked_of: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def record_scaler_arguments() -> None:
    """From now on, record the constructor arguments of PyTorch's scalers."""
    original = _Scaler.__init__
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def init(this: Any, *args: Any, **kwargs: Any) -> None:
        with catch_warnings():
            simplefilter("ignore")  # the warning that CUDA is not available
            original(this, *args, **kwargs)
        given = signature(original).bind(this, *args, **kwargs)
        given.apply_defaults()
        asked_of[this] = given.arguments

    _Scaler.__init__ = init
