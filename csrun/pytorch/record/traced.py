"""Traced tensor: shape and dtype without values, a CPU tensor to autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import LeafSource, Ref
from csrun.pytorch.record.unsupported import AFTER_ITS_STEP, EARLIER_STEP, LATE_BACKWARD

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor

    from csrun.pytorch.record.recorder import StepRecorder


_make_wrapper: Any = torch.Tensor._make_wrapper_subclass


class TracedStorage:
    """Storage shared by traced tensors that are views of one another.

    stored: name of a parameter or batch tensor, which must not be written; else empty.
    """

    __slots__ = ("_tensors", "stored")

    def __init__(self, stored: str = "") -> None:
        self.stored = stored
        self._tensors: list[ref[TracedTensor]] = []

    def add(self, tensor: TracedTensor) -> None:
        """Add a tensor of the storage."""
        self._tensors.append(ref(tensor))

    def replace(self, tensor: TracedTensor, other: TracedTensor) -> None:
        """Replace a tensor of the storage."""
        self._tensors = [ref(other) if each() is tensor else each for each in self._tensors]

    @property
    def tensors(self) -> list[TracedTensor]:
        """Tensors of the storage that still exist."""
        return [tensor for each in self._tensors if (tensor := each()) is not None]


@dataclass(slots=True)
class SharedValue:
    """Value shared by aliases of a tensor."""

    value: Ref


class LateValue(SharedValue):
    """Value of a view after a write to its base, which is recorded when it is used.

    record: records the view; returns its value.
    """

    __slots__ = ("_found", "_record")

    def __init__(self, record: Callable[[], Ref]) -> None:
        self._record = record
        self._found: Ref | None = None

    @property
    def value(self) -> Ref:
        """The value."""
        if self._found is None:
            self._found = self._record()
        return self._found

    @value.setter
    def value(self, value: Ref) -> None:
        self._found = value


class Origin:
    """Origin of a tensor in a step: the call that returned it. Steps share it."""

    __slots__ = ()


class BaseState(NamedTuple):
    """Base of a view at the time of the view. base: its own base, if it is a view itself."""

    like: FakeTensor | Geometry
    held: SharedValue
    memory: TracedStorage
    recorder: StepRecorder | None
    base: ViewOf | None


class ViewOf:
    """Base of a view, and the operator that made it. result: its index among the results.

    The base is an alias of the tensor at that time, which in-place writes ignore.
    """

    __slots__ = ("_alias", "_was", "arguments", "call", "keywords", "result")

    def __init__(
        self,
        was: BaseState,
        call: Any,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        result: int,
    ) -> None:
        self.call, self.arguments, self.keywords, self.result = call, arguments, keywords, result
        self._was = was
        self._alias: TracedTensor | None = None

    @property
    def base(self) -> TracedTensor:
        """The alias; most views are never written, and have none."""
        if self._alias is None:
            like, held, memory, recorder, base = self._was
            assert recorder is not None, "it is of a step"
            self._alias = TracedTensor(like, held, memory, recorder, is_seen=False)
            self._alias.view_of = base
        return self._alias

    def of_step(self, memory: TracedStorage, recorder: StepRecorder | None) -> ViewOf:
        """Return the same view in another step, whose values have the same numbers.

        recorder: of that step; None for a view that is only stored.
        """
        like, held, _, _, base = self._was
        base = base and base.of_step(memory, recorder)
        was = BaseState(like, SharedValue(held.value), memory, recorder, base)
        return ViewOf(was, self.call, self.arguments, self.keywords, self.result)


class TracedTensor(torch.Tensor):
    """A value of the step being recorded.

    is_freed: PyTorch's backward pass would have freed it, and was not run.

    The recorder records operators on it; a read of its values makes the recorder interpret the
    graph so far.
    """

    like: FakeTensor | Geometry
    held: SharedValue
    memory: TracedStorage
    recorder: StepRecorder
    became: Any = None
    view_of: ViewOf | None = None  # None for a base
    place: Origin | None = None  # where calls are known
    _fake: FakeTensor | None = None
    is_freed: bool = False

    @staticmethod
    def __new__(
        cls: type[TracedTensor],
        like: FakeTensor | Geometry,
        value: Ref | SharedValue,
        memory: TracedStorage,
        recorder: StepRecorder,
        is_seen: bool = True,
        requires_grad: bool = False,
    ) -> TracedTensor:
        if requires_grad:
            made = _make_wrapper(
                cls, like.shape, like.stride(), like.storage_offset(), None, like.dtype,
                requires_grad=True,
            )  # fmt: skip
        elif type(like) is Geometry:  # by position, which takes half the time
            made = _make_wrapper(cls, like.shape, like.strides, like.offset, None, like.dtype)
        else:
            made = _make_wrapper(
                cls,
                like.size(),
                strides=like.stride(),
                storage_offset=like.storage_offset(),
                dtype=like.dtype,
                layout=like.layout,
                device=like.device,
            )
        made.held = SharedValue(value) if type(value) is Ref else value
        made.like, made.memory, made.recorder = like, memory, recorder
        if is_seen:
            memory.add(made)
        found: TracedTensor = made
        return found

    @property
    def fake(self) -> FakeTensor:
        """Fake tensor of its geometry."""
        if not isinstance(self.like, Geometry):
            return self.like
        if self._fake is None:
            self._fake = self.like.fake(self.recorder.fake)
        return self._fake

    @property
    def value(self) -> Ref:
        """Current value in the recording."""
        return self.held.value

    @value.setter
    def value(self, value: Ref) -> None:
        self.held.value = value

    def snapshot(self) -> TracedTensor:
        """Return a tensor of the current value, which no write changes."""
        return TracedTensor(self.like, self.value, TracedStorage(), self.recorder)

    def replace_by(self, other: TracedTensor) -> None:
        """Become another tensor, also for autograd; the other one must no longer be used."""
        place = self.place
        torch._C._swap_tensor_impl(self, other)
        self.__dict__ = other.__dict__
        self.place = place
        self.memory.replace(other, self)

    # Autograd records plain operators; FunctionCapture intercepts composites.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on values of a finished step, outside the recording.

        It is deferred until its result is read, where the recorder belongs to a loop.
        """
        if func._schema.is_mutable and isinstance(args[0], TracedTensor):
            target = args[0]
            rest, options = tree_map(_value_of, (args[1:], kwargs or {}))
            if isinstance(target.became, torch.Tensor):
                call_for_user(func, (target.became, *rest), options)
                return target
            written = target.numbers().clone()
            call_for_user(func, (written, *rest), options)
            target.rebind(written)
            return target
        kwargs = kwargs or {}
        if (found := _recorder_of(args, kwargs).defer(func, args, kwargs)) is not None:
            return found
        args, kwargs = tree_map(_value_of, (args, kwargs))
        return call_for_user(func, args, kwargs)

    @property
    def geometry(self) -> Geometry:
        """Shape, strides and offset in the storage, and type."""
        return self.like if isinstance(self.like, Geometry) else Geometry.of(self.like)

    def numbers(self) -> torch.Tensor:
        """Return the value as a plain tensor; the recorder notes the read."""
        if self.became is not None:
            return self.became if isinstance(self.became, torch.Tensor) else self.became.numbers()
        return self.recorder.read(self)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Run backward.

        Raises: CaptureError where the step is finished
        """
        if self.recorder.is_finished:
            raise CaptureError(f"{user_line()}: {LATE_BACKWARD}")
        super().backward(*args, **kwargs)

    @property
    def stale_reason(self) -> str:
        """Reason why another step cannot use the tensor."""
        is_batch = any(
            leaf.value == self.value and leaf.source is LeafSource.INPUT
            for leaf in self.recorder.leaves
        )
        return AFTER_ITS_STEP if is_batch else EARLIER_STEP

    def share(self, memory: torch.Tensor) -> None:
        """Have it and its views read and write a tensor of the loop, once their step is over."""
        for other in self.memory.tensors:
            if (at := other.geometry).dtype == memory.dtype:
                offset = memory.storage_offset() + at.offset
                other.became = memory.as_strided(at.shape, at.strides, offset)

    def rebind(self, value: Any) -> None:
        """Take a new value, after a write by the loop after its step.

        value: a tensor, or an object with `numbers()`.

        Raises: CaptureError if there are views, which would not see the write
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
        """Return the value as an array."""
        return self.numbers().numpy(force=force)

    def tolist(self) -> Any:
        """Return the value as Python numbers."""
        return self.numbers().tolist()


def note_bases(
    results: Iterable[TracedTensor | None], call: Any, args: Any, kwargs: Mapping[str, Any]
) -> None:
    """Store the bases of views among an operator's results, for in-place writes."""
    viewed = args[0] if args else None
    if not isinstance(viewed, TracedTensor):
        return
    for number, made in enumerate(results):
        if made is not None and made.memory is viewed.memory:
            was = BaseState(
                viewed.like, viewed.held, viewed.memory, viewed.recorder, viewed.view_of
            )
            made.view_of = ViewOf(was, call, tuple(args[1:]), kwargs, number)


def _recorder_of(args: Any, kwargs: Any) -> StepRecorder:
    return next(a.recorder for a in tree_leaves((args, kwargs)) if isinstance(a, TracedTensor))


def _value_of(argument: Any) -> Any:
    return argument.numbers() if isinstance(argument, TracedTensor) else argument


def require_no_options(
    gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Check the arguments of `loss.backward()`; `retain_graph` has no effect.

    Raises: CaptureError for arguments that give other gradients
    """
    if gradient is not None or create_graph or inputs is not None:
        raise CaptureError(
            f"{user_line()}: backward() takes no gradient, create_graph or inputs in a Session: "
            "leave them out, or give the Session lists, [model] and [optimizer]"
        )
