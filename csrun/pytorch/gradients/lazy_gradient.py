"""Lazy gradients: the tensors that the loop gets as `parameter.grad`, and computes from it."""

from typing import Any, Protocol

import torch

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.gradients.edits import Edit, ParameterGradient
from csrun.pytorch.gradients.values import GradientValue, not_returned
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.step.tokens import COMPUTED

_READS = frozenset(
    {"__repr__", "__format__", "numpy", "__array__", "tolist", "item", "__deepcopy__"}
    | {"__reduce_ex__"}
)
_NO_EDITS = frozenset({"detach", "detach_", "requires_grad_"})
_CPU = torch.device("cpu")


class ValueReads(Protocol):
    """Access to the values of gradients, as used by a lazy gradient."""

    def tensor_of(self, gradient: "Gradient") -> torch.Tensor:
        """Return the numbers of a value."""


class GradientOwner(Protocol):
    """The gradients of a loop, as used by a lazy gradient."""

    @property
    def reads(self) -> "ValueReads":
        """Access to their values."""

    def called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """Return the result of a function of gradients, and record the call."""


class Gradient(torch.Tensor):
    """Lazy gradient of a parameter, or a value computed from gradients.

    of: the parameter; None for a computed value.
    edit: edit that computed it in `step`, as its result `leaf`.
    value: for a value that no edit has computed.
    """

    of: ParameterGradient | None
    owner: GradientOwner
    edit: Edit | None = None
    leaf: int = 0
    step: StepOutputs | None = None
    value: GradientValue | None = None

    @staticmethod
    def __new__(
        cls: type["Gradient"],
        like: torch.Tensor,
        owner: GradientOwner,
        of: ParameterGradient | None = None,
    ) -> "Gradient":
        made: Gradient = torch.Tensor._make_wrapper_subclass(
            cls, like.size(), dtype=like.dtype, device=like.device
        )
        made.owner, made.of = owner, of
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call of a PyTorch function on gradients, or read their values.

        Raises: UsageError for values that cannot be known
        """
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ not in COMPUTED:
            if func == _DATA:
                return args[0]
            with torch._C.DisableTorchFunctionSubclass():
                return call_for_user(func, args, kwargs or {})
        if name == "__set__":
            if func == _SET_DATA and args[0] is args[1]:
                return None
            raise not_returned()
        kwargs = kwargs or {}
        if name in _NO_EDITS or _is_own_type(name, args, kwargs):
            return args[0]
        if name in _READS:
            return _read(func, name, args, kwargs)
        if name == "__iter__":
            return iter(args[0].unbind(0))
        # those of a model without memory claim to be on the meta device
        args = tuple(_CPU if isinstance(a, torch.device) else a for a in args)
        leaves = leaves_of(args, kwargs)
        first = next(leaf for leaf in leaves if isinstance(leaf, Gradient))
        return first.owner.called(func, args, kwargs, leaves)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises: UsageError for an operator on a tensor without values"""
        raise not_returned()


_DATA, _SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__
_CASTS = {"cpu": None, "float": torch.float32, "double": torch.float64}


def _is_own_type(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a call that moves or casts a gradient to its own device and type, as `model.to`
    does.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if name in _CASTS and len(args) == 1 and not kwargs:
            return _CASTS[name] in (None, args[0].dtype)
        if name != "to" or kwargs.get("copy"):
            return False
        own = (args[0].dtype, args[0].device, _CPU, "cpu", None, False)
        given = (*args[1:], *(v for key, v in kwargs.items() if key != "non_blocking"))
        return all(any(type(each) is type(x) and each == x for x in own) for each in given)


def _read(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, *rest = args
    numbers = first.owner.reads.tensor_of(first)
    return numbers if name == "__deepcopy__" else func(numbers, *rest, **kwargs)
