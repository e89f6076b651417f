"""Lazy tensors that the loop gets from step 4 on: a value's name, shape and type, without numbers.

Creating one takes some microseconds. A function of tokens is either a call that step 1 made at the
same position, whose result is another token, or is computed when it is read (`host_eval.py`).
"""

from collections.abc import Callable, Iterable
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount, ref

import numpy as np
import torch
from torch.utils._pytree import tree_map

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.traced import TracedTensor, require_no_options
from csrun.pytorch.step.step_outputs import Owner, Slot, StepOutputs, StepValue

#: What a tensor without numbers can answer, too: methods, and computed attributes.
_OF_META = frozenset(
    {"size", "dim", "numel", "stride", "element_size", "is_floating_point", "is_complex"}
    | {"nelement", "ndimension", "storage_offset", "is_contiguous", "is_signed", "get_device"}
)
COMPUTED = frozenset({"T", "mT", "H", "mH", "real", "imag"})


class LazyTensor(torch.Tensor):
    """Base of lazy tensors, which are accepted like tensors and computed when read."""

    _owner: Owner

    def tensor(self) -> torch.Tensor:
        """Return the numbers."""
        raise NotImplementedError

    @property
    def viewed(self) -> tuple[StepValue, ...]:
        """Views of weights that it depends on, which change when the optimizer steps."""
        return ()

    @property
    def like(self) -> torch.Tensor:
        """A tensor of its shape and type."""
        return self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Dispatch one of PyTorch's functions with tokens among its arguments."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _OF_META or (name == "__get__" and func.__self__.__name__ not in COMPUTED):
            with torch._C.DisableTorchFunctionSubclass():
                return call_for_user(func, args, kwargs)
        if name == "_is_all_true":  # tested by torch.distributions, as in PyTorch's tracing
            return True
        for leaf in (
            args[:1] if args and isinstance(args[0], LazyTensor) else leaves_of(args, kwargs)
        ):
            if isinstance(leaf, LazyTensor):
                return leaf._owner.apply(func, args, kwargs)
        raise AssertionError("called for tokens")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator below autograd on the numbers."""
        args, kwargs = tree_map(tensor_of, (args, kwargs or {}))
        with torch.no_grad():
            return call_for_user(func, args, kwargs)

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Call `backward()`; refused except on the loss of step 1. `retain_graph` has no effect.

        Raises: UsageError for arguments that give other gradients
        """
        require_no_options(gradient, retain_graph, create_graph, inputs)
        self._owner.backward(self)

    @property
    def data(self) -> Any:
        """The value, detached."""
        return self.detach()

    @data.setter
    def data(self, given: Any) -> None:
        raise TypeError(".data of a value of the loop cannot be set: compute a new value")

    def cpu(self, *args: Any, **kwargs: Any) -> Any:
        """Return the token: its numbers are on the host when read."""
        return self

    def item(self) -> Any:
        return self.tensor().item()

    def tolist(self) -> Any:
        return self.tensor().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return self.tensor().numpy(force=force)

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any:
        return np.array(self.tensor().numpy(), dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.tensor())

    def __int__(self) -> int:
        return int(self.tensor())

    def __index__(self) -> int:
        return int(self.tensor().__index__())

    def __bool__(self) -> bool:
        return bool(self.tensor())

    def __len__(self) -> int:
        if not self.dim():
            raise TypeError("len() of a 0-d tensor")
        return int(self.size(0))

    def __contains__(self, element: Any) -> bool:
        return tensor_of(element) in self.tensor()

    def __iter__(self) -> Any:
        if not self.dim():
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __format__(self, form: str) -> str:
        return format(self.tensor(), form)

    def __repr__(self, *unused: object, **options: object) -> str:
        return repr(self.tensor())

    def __hash__(self) -> int:
        return id(self)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.tensor().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.tensor().__reduce_ex__(protocol)


class _TokenReference(ref[Any]):
    """A token's own weak reference, apart from those of the script."""

    __slots__ = ()


class Token(LazyTensor):
    """Lazy tensor of a slot in one step."""

    slot: Slot
    step: StepOutputs
    reference: _TokenReference

    @staticmethod
    def __new__(
        cls: type["Token"],
        owner: Owner,
        step: StepOutputs,
        slot: Slot,
        requires_grad: bool | None = None,
    ) -> "Token":
        meta = slot.meta
        wants = meta.requires_grad if requires_grad is None else requires_grad
        strides = meta.stride() if slot.rows_axis is None else None
        made: Token = torch.Tensor._make_wrapper_subclass(
            cls, step.sizes_of(slot), strides, dtype=meta.dtype, requires_grad=wants
        )
        made._owner, made.step, made.slot = owner, step, slot
        made.reference = _TokenReference(made)
        if slot.is_output:
            step.others += (made.reference,)
        return made

    @property
    def viewed(self) -> tuple[StepValue, ...]:
        return (self.in_step,) if self.slot.weight else ()

    @property
    def like(self) -> torch.Tensor:
        return self.slot.meta

    @property
    def in_step(self) -> StepValue:
        """The value that it currently stands for."""
        return StepValue(self.step, self.slot, not self.requires_grad)

    @property
    def written(self) -> Any:
        """Its value after a write of the loop once its step is over; None without one."""
        return self.step.written_loss if self.slot.is_loss else None

    def tensor(self) -> torch.Tensor:
        if (written := self.written) is not None:
            found: torch.Tensor = written.numbers()
            return found
        if self.slot.weight:
            self._owner.readback.require_current(self.viewed)
        return self._owner.readback.read(self.step, self.slot)

    def detach(self) -> "Token":
        """Return the value, detached."""
        with torch._C.DisableTorchFunction():  # no calls of a step that is recorded after all
            made = Token(self._owner, self.step, self.slot, False) if self.requires_grad else self
        if self.slot.is_output:
            self.step.detached += (ref(made),)
        return made

    def rebind(self, written: "Token") -> None:
        """Stand for the value after a write."""
        self.slot, self.is_rebound = written.slot, True
        if written.requires_grad != self.requires_grad:
            with torch._C.DisableTorchFunctionSubclass():
                self.requires_grad_(written.requires_grad)

    def item(self) -> Any:
        """Return the number; for a loss without creating a tensor, which would take longer."""
        if not self.slot.is_loss or self.step.written_loss is not None:
            return self.tensor().item()
        loss = self._owner.readback.loss(self.step)
        return float(np.float32(loss)) if self.slot.meta.dtype is torch.float32 else loss

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, form: str) -> str:
        is_number = self.slot.is_loss and not self.dim()
        return format(self.item() if is_number else self.tensor(), form)


_AT_ONCE = 2  # tokens of a value in a loop that keeps none: this step's, and the last one's


def token_of(owner: Owner, step: StepOutputs, slot: Slot) -> Token:
    """Return a token, reused if nothing references it: a new one takes five times as long."""
    if slot.rows_axis is not None:  # its shape differs from step to step
        return Token(owner, step, slot)
    known: list[Token] = slot.made
    for made in known:
        # The loop has no reference to it, and has set no attribute of it.
        is_unused = getrefcount(made) == _UNUSED and getweakrefcount(made) == 1
        if is_unused and len(made.__dict__) == _ATTRIBUTES:
            made._owner, made.step = owner, step
            if slot.is_output:
                step.others += (made.reference,)
            return made
    known.append(made := Token(owner, step, slot))
    del known[:-_AT_ONCE]
    return made


_ATTRIBUTES = 4  # owner, step, slot, reference
_UNUSED = next(getrefcount(each) for each in [object()])  # by the list, the loop, the argument


def _in_memory(like: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor of a type, on the CPU."""
    return torch.empty_strided((0,) * like.dim(), like.stride(), dtype=like.dtype)


def _conversion_method(
    name: str, probe_of: Callable[[torch.Tensor], torch.Tensor] = _in_memory
) -> Callable[..., Any]:
    """Return a conversion method that returns the token itself if nothing changes.

    probe_of: returns a tensor like the token, which is converted to find out.
    """

    def method(self: LazyTensor, *args: Any, **kwargs: Any) -> Any:
        func, like = getattr(torch.Tensor, name), self.like  # which the script may have replaced
        is_plain = not any(isinstance(a, LazyTensor) for a in (*args, *kwargs.values()))
        with torch._C.DisableTorchFunction():  # not calls of a step that is being recorded
            probe = probe_of(like)
            if is_plain and func(probe, *args, **kwargs) is probe:
                return self
        return self._owner.apply(func, (self, *args), kwargs)

    return method


for _name in ("to", "float", "double", "long", "int"):
    setattr(LazyTensor, _name, _conversion_method(_name))
# The strides of other lazy tensors are not known. An empty tensor is always contiguous.
Token.contiguous = _conversion_method("contiguous", probe_of=lambda like: like)


def has_values_of_steps(leaves: Iterable[Any]) -> bool:
    """True if any of these arguments belongs to a step, on tokens or recorded."""
    return any(isinstance(leaf, _OF_STEPS) for leaf in leaves)


_OF_STEPS = (LazyTensor, TracedTensor)


def tensor_of(argument: Any) -> Any:
    """Return the numbers of a lazy or traced tensor, else the argument."""
    if isinstance(argument, TracedTensor):  # of a finished recorded step
        return argument.recorder.reader(argument)
    return argument.tensor() if isinstance(argument, LazyTensor) else argument
