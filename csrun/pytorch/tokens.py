"""What the loop gets in the place of tensors from step 2 on: the name of a value, not its numbers.

A token costs a microsecond. What is computed with it is either what step 1 computed in its place,
and then another token, or it waits until somebody reads it, and is computed on numbers then.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.capture import Ref, Traced, user_line


@dataclass(frozen=True, eq=False)
class Slot:
    """A place of the loop that has a value in each step: an array of the batch, or a result.

    meta: a tensor of its shape and type, without numbers. is_loss: backward() is called on it.
    """

    value: Ref
    meta: torch.Tensor
    is_loss: bool = False


@dataclass(eq=False, slots=True)
class StepValues:
    """What is known of one step that tokens are out for.

    number: among those of the loop. loss: None until it has run. is_over: it has run, or an earlier
    run has taken it (is_taken).
    """

    number: int
    is_over: bool = False
    loss: float | None = None
    outputs: dict[Ref, torch.Tensor] = field(default_factory=dict)
    is_taken: bool = False


class Owner(Protocol):
    """The Session, as tokens see it."""

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One of PyTorch's functions is called on tokens."""

    def read(self, step: StepValues, slot: Slot) -> torch.Tensor:
        """The numbers of a value."""

    def loss(self, step: StepValues) -> float:
        """The loss of a step."""

    def want(self, tokens: Sequence["Token"]) -> None:
        """These are about to be read, all of them."""

    def backward(self, token: "Token") -> None:
        """The loop calls `backward()`."""


#: What a tensor without numbers tells as well.
_OF_META = frozenset(
    {"shape", "dtype", "ndim", "layout", "itemsize", "nbytes", "size", "dim", "numel", "stride"}
    | {"element_size", "is_floating_point", "is_complex", "nelement", "ndimension", "names"}
)


_NESTED = (list, tuple, dict)


def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """As pytree's `tree_leaves((args, kwargs))`, which takes ten times as long."""
    found = [*args, *kwargs.values()]
    for argument in found:
        if isinstance(argument, _NESTED):
            return list(tree_leaves((args, kwargs)))
    return found


class Numbers:
    """What is common to all tokens: they go where tensors go, and numbers are read when needed."""

    __slots__ = ("_owner",)
    _owner: Owner

    def tensor(self) -> torch.Tensor:
        """The numbers."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One of PyTorch's functions is called with tokens among its arguments."""
        kwargs = kwargs or {}
        for leaf in leaves_of(args, kwargs):
            if isinstance(leaf, Numbers):
                return leaf._owner.apply(func, args, kwargs)
        raise AssertionError("called for tokens")

    def __getattr__(self, name: str) -> Any:
        """A method or attribute of tensors."""
        found = getattr(torch.Tensor, name, None)
        if found is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if not callable(found):
            return getattr(self.tensor(), name)

        def method(*args: Any, **kwargs: Any) -> Any:
            return self._owner.apply(found, (self, *args), kwargs)

        return method

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Refused of all that is not the loss of step 1; `retain_graph` changes nothing.

        Raises: UsageError for arguments that make other gradients
        """
        if gradient is not None or create_graph or inputs is not None:
            raise UsageError(
                f"{user_line()}: backward() takes no gradient, create_graph or inputs in a Session"
            )
        self._owner.backward(self)  # type: ignore[arg-type]

    @property
    def data(self) -> "Numbers":
        """The value, apart from autograd, as all of them are."""
        return self

    def detach(self) -> "Numbers":
        """The value, apart from autograd, as all of them are."""
        return self

    def cpu(self) -> "Numbers":
        """It is there."""
        return self

    def item(self) -> Any:
        return self.tensor().item()

    def tolist(self) -> Any:
        return self.tensor().tolist()

    def numpy(self) -> Any:
        return self.tensor().numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tensor().__array__(*args, **kwargs)

    def __float__(self) -> float:
        return float(self.tensor())

    def __int__(self) -> int:
        return int(self.tensor())

    def __index__(self) -> int:
        return operator.index(self.tensor())

    def __bool__(self) -> bool:
        return bool(self.tensor())

    def __len__(self) -> int:
        return len(self.tensor())

    def __iter__(self) -> Any:
        return iter(self.tensor())

    def __format__(self, form: str) -> str:
        return format(self.tensor(), form)

    def __repr__(self) -> str:
        return repr(self.tensor())

    def __hash__(self) -> int:
        return id(self)


class Token(Numbers):
    """The value of a slot in one step."""

    __slots__ = ("slot", "step")

    def __init__(self, owner: Owner, step: StepValues, slot: Slot) -> None:
        self._owner, self.step, self.slot = owner, step, slot

    def tensor(self) -> torch.Tensor:
        return self._owner.read(self.step, self.slot)

    def item(self) -> Any:
        """The number; of a loss without a tensor of PyTorch's, whose making takes longer."""
        if not self.slot.is_loss:
            return super().item()
        loss = self._owner.loss(self.step)
        return float(np.float32(loss)) if self.slot.meta.dtype is torch.float32 else loss

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, form: str) -> str:
        return format(self.item() if self.slot.is_loss else self.tensor(), form)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_META:
            return getattr(self.slot.meta, name)
        if name in ("device", "requires_grad", "is_leaf", "grad_fn"):
            return {"device": torch.device("cpu"), "is_leaf": False}.get(name)
        return super().__getattr__(name)

    def __len__(self) -> int:
        return len(self.slot.meta)


def _unless_same(name: str) -> Callable[..., Any]:
    """A method that gives another type or layout: the token itself where that is its own."""
    func = getattr(torch.Tensor, name)

    def method(self: Token, *args: Any, **kwargs: Any) -> Any:
        meta = self.slot.meta
        probe = torch.empty_strided((0,) * meta.dim(), meta.stride(), dtype=meta.dtype)
        is_plain = not any(isinstance(a, Numbers) for a in (*args, *kwargs.values()))
        if is_plain and func(probe, *args, **kwargs) is probe:
            return self
        return self._owner.apply(func, (self, *args), kwargs)

    return method


for _name in ("to", "float", "double", "long", "int", "contiguous"):
    setattr(Token, _name, _unless_same(_name))


class Lazy(Numbers):
    """What a function of tokens will give when it is read."""

    __slots__ = ("_args", "_func", "_kwargs", "_tensor")

    def __init__(
        self, owner: Owner, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._owner, self._func = owner, func
        self._args, self._kwargs = tree_map(_as_it_is, (args, dict(kwargs)))
        self._tensor: Any = None

    @property
    def values(self) -> "Lazy":
        """Of what max, sort or topk give."""
        return Lazy(self._owner, attrgetter("values"), (self,), {})

    @property
    def indices(self) -> "Lazy":
        """Of what max, sort or topk give."""
        return Lazy(self._owner, attrgetter("indices"), (self,), {})

    @property
    def needs(self) -> list["Lazy"]:
        """Those that it is made of, and that are not known yet."""
        leaves = tree_leaves((self._args, self._kwargs))
        return [a for a in leaves if isinstance(a, Lazy) and a._tensor is None]

    def tensor(self) -> Any:
        """The numbers; of a sum over many steps, one after the other."""
        waiting = [self]
        self._owner.want(self._tokens())
        with on_one_thread():  # sums must not depend on how many CPUs a task has
            while self._tensor is None:
                if more := waiting[-1].needs:
                    waiting += more
                    continue
                waiting.pop()._compute()
        return self._tensor

    def _tokens(self) -> list[Token]:
        """What it is made of in the end."""
        found, waiting, seen = [], [self], {id(self)}
        while waiting:
            lazy = waiting.pop()
            leaves = tree_leaves((lazy._args, lazy._kwargs))
            found += [leaf for leaf in leaves if isinstance(leaf, Token)]
            new = [each for each in lazy.needs if id(each) not in seen]
            seen.update(map(id, new))
            waiting += new
        return found

    def _compute(self) -> None:
        args, kwargs = tree_map(_number_of, (self._args, self._kwargs))
        with torch.no_grad():
            found = self._func(*args, **kwargs)
        self._tensor = args[0] if found is None else found  # x[i] = y gives nothing
        self._args, self._kwargs = (), {}


def _as_it_is(argument: Any) -> Any:
    """What the loop may write into until a function of it is computed."""
    if type(argument) is torch.Tensor:
        return argument.detach().clone()
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def _number_of(argument: Any) -> Any:
    if isinstance(argument, Traced):  # of a step that was recorded, and is over
        return argument.recorder.number_of(argument)
    return argument.tensor() if isinstance(argument, Numbers) else argument


def _operator(name: str) -> Callable[..., Any]:
    func = getattr(torch.Tensor, name)

    def method(self: Numbers, *args: Any) -> Any:
        return self._owner.apply(func, (self, *args), {})

    return method


for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem"),
):
    setattr(Numbers, f"__{_name}__", _operator(f"__{_name}__"))
