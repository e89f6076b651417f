"""16-bit floating-point types in scripts; in a float32 run they mean float32."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from csrun.pytorch.errors import CaptureError, user_line

log = logging.getLogger("csrun")

HALF_TYPES = (torch.float16, torch.bfloat16)
_logged: set[str] = set()


def log_widened(what: str) -> None:
    """Log once that 16-bit values are float32. what: subject of the message."""
    if what not in _logged:
        _logged.add(what)
        log.info(f"{user_line()}: {what} of float16 or bfloat16 is float32, as all arithmetic is")


def refuse_halves(leaves: Mapping[str, str]) -> None:
    """Refuse a model of 16-bit tensors. leaves: of each type of floats, a tensor by name.

    Raises: CaptureError
    """
    for kind in HALF_TYPES:
        name = str(kind).removeprefix("torch.")
        if name in leaves:
            raise CaptureError(
                f"{user_line()}: {leaves[name]} is {name}, and models are float32 or float64: "
                f'remove the cast; for 16-bit storage pass precision="mixed_{name}" to '
                "cbtorch.initialize"
            )


_CASTS = (torch.Tensor.half, torch.Tensor.bfloat16)
_MAY_CAST = frozenset({*_CASTS, torch.Tensor.to})


def without_halves(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wide: torch.dtype
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Replace 16-bit types in a call of PyTorch by `wide`."""
    if func in _CASTS:
        func, args = torch.Tensor.to, (args[0], wide)
    elif any(map(_is_half, args)):
        args = tuple(wide if _is_half(argument) else argument for argument in args)
    elif kwargs and _is_half(kwargs.get("dtype")):
        kwargs = {**kwargs, "dtype": wide}
    else:
        return func, args, kwargs
    log_widened("a tensor")
    return func, args, kwargs


def may_cast(func: Any) -> bool:
    """True if `is_own_cast` may be true of a function's calls."""
    return func in _MAY_CAST


def is_own_cast(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True for a call that casts a float to a 16-bit type, which has no effect."""
    if func is torch.Tensor.to:
        is_cast = any(map(_is_half, args[1:])) or _is_half(kwargs.get("dtype"))
    else:
        is_cast = func in _CASTS
    return is_cast and args[0].dtype.is_floating_point


def _is_half(argument: Any) -> bool:
    return type(argument) is torch.dtype and argument in HALF_TYPES
