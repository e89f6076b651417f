"""The traced tensor: shape and type, no numbers; autograd takes it for a tensor of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.recording import Ref, Source
from csrun.pytorch.record.torch_modes import outside
from csrun.pytorch.record.unsupported import EARLIER_STEP, FETCHED_AHEAD, LATE_BACKWARD

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from csrun.pytorch.record.recorder import Recorder

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


class Memory:
    """What tensors that are views of one another share.

    stored: what it is, where the loop must not write to it: a parameter, an array of the batch.
    """

    def __init__(self, stored: str = "") -> None:
        self.stored = stored
        self.tensors: WeakSet[Traced] = WeakSet()


@dataclass
class Held:
    """The value of tensors that are one and the same."""

    value: Ref


@dataclass(frozen=True)
class ViewOf:
    """The tensor that another one is a view of, and the operator that made it.

    result: which one of several.
    """

    base: Traced
    call: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: int


class Traced(torch.Tensor):
    """A value of the step that is recorded.

    PyTorch's operators on it are written down by the recorder; what needs its numbers asks that,
    too, which interprets what is written so far.
    """

    fake: FakeTensor
    held: Held
    memory: Memory
    recorder: Recorder
    became: Any = None
    view_of: ViewOf | None = None  # None for what is no view

    @staticmethod
    def __new__(
        cls: type[Traced],
        fake: FakeTensor,
        value: Ref | Held,
        memory: Memory,
        recorder: Recorder,
        is_seen: bool = True,
    ) -> Traced:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            fake.size(),
            strides=fake.stride(),
            storage_offset=fake.storage_offset(),
            dtype=fake.dtype,
            layout=fake.layout,
            device=fake.device,
        )
        made.held = value if isinstance(value, Held) else Held(value)
        made.fake, made.memory, made.recorder = fake, memory, recorder
        if is_seen:
            memory.tensors.add(made)
        found: Traced = made
        return found

    @property
    def value(self) -> Ref:
        """The value of the recording that it has now."""
        return self.held.value

    @value.setter
    def value(self, value: Ref) -> None:
        self.held.value = value

    def unseen(self) -> Traced:
        """The same tensor, as its views know it: writes into one need not mind it."""
        made = Traced(self.fake, self.held, self.memory, self.recorder, is_seen=False)
        made.view_of = self.view_of
        return made

    # What autograd records of it is plain; functions that are taken whole have a mode of their own.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operators outside the recording, on what a step left behind: they have its numbers.

        What they give waits until it is read, where the recorder knows of a loop.
        """
        if func._schema.is_mutable and isinstance(args[0], Traced):
            target = args[0]
            written = target.numbers().clone()
            rest, options = tree_map(_number, (args[1:], kwargs or {}))
            call_for_user(func, (written, *rest), options)
            target.become(written)
            return target
        kwargs = kwargs or {}
        later = _recorder_of(args, kwargs).later
        if later is not None and (found := later(func, args, kwargs)) is not None:
            return found
        args, kwargs = tree_map(_number, (args, kwargs))
        return call_for_user(func, args, kwargs)

    @property
    def geometry(self) -> Geometry:
        """How it lies in its memory."""
        return tuple(self.fake.size()), tuple(self.fake.stride()), int(self.fake.storage_offset())

    def numbers(self) -> torch.Tensor:
        """What the value is, a tensor of PyTorch's own. The loop asks for it: that is noted."""
        if self.became is not None:
            return self.became if isinstance(self.became, torch.Tensor) else self.became.numbers()
        return self.recorder.read(self)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Compute gradients.

        Raises: CaptureError where its step is over
        """
        if self.recorder.is_finished:
            raise CaptureError(f"{user_line()}: {LATE_BACKWARD}")
        super().backward(*args, **kwargs)

    @property
    def stale_reason(self) -> str:
        """Why another step cannot compute with it."""
        is_batch = any(
            leaf.value == self.value and leaf.source is Source.INPUT
            for leaf in self.recorder.leaves
        )
        return FETCHED_AHEAD if is_batch else EARLIER_STEP

    def become(self, value: Any) -> None:
        """The loop has written into it when its step was over: a tensor, or what has numbers.

        Raises: CaptureError where views of it would not see that
        """
        others = list(self.memory.tensors)
        if any(other.geometry != self.geometry for other in others):
            raise CaptureError(
                f"{user_line()}: the loop writes in place into a step's value that has views: "
                "write x = x * 2 instead of x *= 2"
            )
        for other in others:
            other.became = value

    def __repr__(self, *unused: object, **options: object) -> str:
        return repr(self.numbers())

    def __format__(self, form: str) -> str:
        return format(self.numbers(), form)

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any:
        return np.array(self.numbers().numpy(), dtype, copy=copy)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.numbers().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers().__reduce_ex__(protocol)

    def numpy(self, *, force: bool = False) -> Any:
        """Its numbers as an array."""
        return self.numbers().numpy(force=force)

    def tolist(self) -> Any:
        """Its numbers as Python's."""
        return self.numbers().tolist()


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode) -> FakeTensor:
    """A tensor of the user's without its numbers, on the CPU."""
    with torch.no_grad(), outside():
        if not is_meta(tensor):
            return mode.from_tensor(tensor.detach(), static_shapes=True)
        with mode:
            made: Any = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            found: FakeTensor = made
            return found


def _recorder_of(args: Any, kwargs: Any) -> Recorder:
    return next(a.recorder for a in tree_leaves((args, kwargs)) if isinstance(a, Traced))


def _number(argument: Any) -> Any:
    return argument.numbers() if isinstance(argument, Traced) else argument
