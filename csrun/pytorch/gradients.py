"""Gradients in the steps that are not recorded: they are there, and have no numbers on the host.

What the loop does to them, such as clipping, is in the program since step 1.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from csrun.base.errors import UsageError
from csrun.pytorch.capture import user_line
from csrun.pytorch.loop_shape import is_write
from csrun.pytorch.tokens import Numbers, Owner

if TYPE_CHECKING:
    from torch.nn import Parameter


def refused() -> UsageError:
    """An error about a number of the gradients."""
    return UsageError(
        f"{user_line()}: a number of the gradients is read, such as the norm that clip_grad_norm_ "
        "returns: gradients stay on the wafer after the first steps; leave it out, or train in "
        "plain PyTorch to look at it"
    )


class Norm(Numbers):
    """What the loop computes of gradients, as their norm: nobody has its numbers."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def tensor(self) -> torch.Tensor:
        """Raises: UsageError"""
        raise refused()


class Gradient(torch.Tensor):
    """A parameter's gradient in a step whose Python does not compute it."""

    owner: Owner

    @staticmethod
    def __new__(cls: type["Gradient"], parameter: torch.Tensor, owner: Owner) -> "Gradient":
        made: Gradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.size(), dtype=parameter.dtype, device=parameter.device
        )
        made.owner = owner
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One of PyTorch's functions is called on gradients: an edit of them is made already."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if is_write(func):
            return args[0]
        first = next(a for a in tree_leaves((args, kwargs)) if isinstance(a, Gradient))
        return Norm(first.owner)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises: UsageError for an operator on what has no numbers"""
        raise refused()


class Gradients:
    """Those of the parameters that are trained, while a loop runs ahead."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._all: list[tuple[Parameter, Gradient]] = []

    def give(self, parameters: Iterable["Parameter"]) -> None:
        """Have these parameters have gradients after `backward()`."""
        with torch._C.DisableTorchFunctionSubclass():
            self._all = [(p, Gradient(p, self._owner)) for p in parameters]

    def appear(self) -> None:
        """`backward()` was called."""
        if self._all and self._all[0][0].grad is None:
            for parameter, gradient in self._all:
                parameter.grad = gradient

    def vanish(self) -> None:
        """Gradients are PyTorch's own from here on: there are none yet."""
        for parameter, _ in self._all:
            if isinstance(parameter.grad, Gradient):
                parameter.grad = None
