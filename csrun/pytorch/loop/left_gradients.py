"""Gradients of earlier steps, which a step with its own updates may leave, and not use."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.tokens import LazyTensor


class LeftGradient(Enum):
    """State of a parameter's gradient that is not of the open step."""

    EARLIER = auto()  # of an earlier step
    SUM = auto()  # of one of an earlier step, and of this one


class UnclearedSum(LazyTensor):
    """Sum of gradients of two steps, which no step has computed; it can only be cleared."""

    @staticmethod
    def __new__(cls: type["UnclearedSum"], like: torch.Tensor) -> "UnclearedSum":
        made: UnclearedSum = torch.Tensor._make_wrapper_subclass(cls, like.size(), dtype=like.dtype)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return attributes of its geometry. Raises: UsageError for other uses"""
        if getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return call_for_user(func, args, kwargs or {})
        raise uncleared_error()

    def tensor(self) -> torch.Tensor:
        """Raises: UsageError"""
        raise uncleared_error()


def state_of(gradient: Any, is_own: Callable[[Any], bool]) -> Any:
    """Return a gradient, or its state if it is not of the open step.

    is_own: returns whether a lazy or traced gradient belongs to this.
    """
    if isinstance(gradient, UnclearedSum):
        return LeftGradient.SUM
    if isinstance(gradient, LazyTensor | TracedTensor) and not is_own(gradient):
        return LeftGradient.EARLIER
    return gradient


def uncleared_error() -> UsageError:
    """Return the error for the use of a gradient of an earlier step."""
    return UsageError(
        f"{user_line()}: a gradient belongs to an earlier step: call zero_grad() in each step of "
        "a Session with several models or optimizers"
    )
