"""Tree of the PyTorch calls that recorded steps have made, in which later steps find theirs.

The root is the batch, and each call leads to the calls that followed it. The effect of a call on
the recording is a function of the calls before it and of its arguments. If these are known, so are
its operators and results, without PyTorch's dispatcher and autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import torch

from csrun.pytorch.record.equal_bits import are_same_values, have_equal_bits
from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import (
    GraphLeaf,
    LeafSource,
    RecordedOperator,
    Ref,
    TensorKind,
)
from csrun.pytorch.record.reuse.cached_backward import CachedBackward
from csrun.pytorch.record.traced import Origin, TracedTensor

_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
PLAIN = frozenset({bool, int, float, str, NoneType, EllipsisType, *_TYPES})
LISTS = (list, tuple)
DENSE = (TracedTensor, torch.Tensor, torch.nn.Parameter)  # others have their own methods
MOST_MISSES = 48


class CallKind(Enum):
    """Kind of a known call, for a later step that makes it."""

    RECORDED = "recorded"  # it adds to the recording
    LIVE = "live"  # it is repeated: it records nothing, e.g. a read of a value
    BACKWARD = "backward"


class Context(NamedTuple):
    """State that PyTorch's functions depend on besides their arguments.

    depth: number of dispatch modes.
    is_of_model: the model makes the call.
    scope: the current module, if any.
    """

    has_gradients: bool
    dtype: torch.dtype
    is_cast: bool
    are_saved_otherwise: bool
    is_deterministic: bool
    depth: int
    is_of_model: bool
    scope: str | None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context manager that restores autograd, casts and the default type."""
        dtype, is_cast = torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
        torch.set_default_dtype(self.dtype)
        torch.set_autocast_enabled("cpu", self.is_cast)
        try:
            with torch.set_grad_enabled(self.has_gradients):
                yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_autocast_enabled("cpu", is_cast)


def context_now(is_of_model: bool, scope: str | None) -> tuple[Any, ...]:
    """Return the current Context as a tuple, which is faster to create."""
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_dispatch_stack(),
        is_of_model,
        scope,
    )


class NestedArgument(NamedTuple):
    """A list, tuple, slice or dict among the arguments. names: of a dict."""

    kind: type[Any]
    each: tuple[Any, ...]
    names: tuple[Any, ...] = ()


class ModelArgument(NamedTuple):
    """A parameter or buffer among the arguments."""

    tensor: torch.Tensor
    requires_grad: bool
    shape: tuple[int, ...]


class ScriptArgument(NamedTuple):
    """A plain tensor among the arguments, which is a leaf.

    is_new: no earlier call of the step has had it.
    numbers: numbers that it must have, or None.
    """

    value: Ref
    like: Geometry
    source: LeafSource
    is_new: bool
    numbers: torch.Tensor | None


class CachedLeaf(NamedTuple):
    """A leaf that a call adds. given: index of the script's tensor that it belongs to, or None."""

    leaf: GraphLeaf
    like: Geometry
    stored: str
    given: int | None


class CachedResult(NamedTuple):
    """A tensor among the results of a call.

    same_as: index of the argument tensor that it is.
    held_of, memory_of: indices of those whose value or memory it shares; memories of earlier
        results have negative numbers.
    """

    same_as: int | None
    like: Geometry | None = None
    value: Ref | None = None
    held_of: int | None = None
    memory_of: int | None = None
    requires_grad: bool = False
    place: Origin | None = None


@dataclass(eq=False, slots=True)
class CachedCall:
    """A call, with its effects on the recording.

    noted: as the loop's call.
    written: new values of tensors among the arguments, and whether they then require a gradient.
    gradients: gradients of parameters set by backward().
    after: calls that may follow.
    """

    effect: CallKind
    func: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    context: Context
    operators: tuple[RecordedOperator, ...] = ()
    kinds: tuple[TensorKind, ...] = ()
    leaves: tuple[CachedLeaf, ...] = ()
    results: tuple[CachedResult, ...] = ()
    kind: Callable[[Any], Any] | None = None
    written: tuple[tuple[int, Ref, bool], ...] = ()
    noted: Any = None
    backward: CachedBackward | None = None
    gradients: Mapping[str, Origin] = field(default_factory=dict)
    after: list[CachedCall] = field(default_factory=list)

    def is_made(
        self,
        recorder: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        context: tuple[Any, ...],
        given: list[torch.Tensor],
    ) -> bool:
        """True if a call is this one. given: collects the tensors among its arguments."""
        if func is not self.func and func != self.func:
            return False
        if not _are_given(recorder, self.arguments, args, given, context):
            return False
        if self.keywords.keys() != kwargs.keys():
            return False
        own = tuple(kwargs[name] for name in self.keywords)
        if own and not _are_given(recorder, tuple(self.keywords.values()), own, given, context):
            return False
        if self.context != context:
            return False
        return all(is_whole(given[number]) for number, _, _ in self.written)


def is_whole(written: torch.Tensor) -> bool:
    """True if a written tensor is the only one in its memory, except for aliases."""
    if not isinstance(written, TracedTensor):
        return True
    return all(other.held is written.held for other in written.memory.tensors)


def _are_given(
    recorder: Any,
    wanted: Sequence[Any],
    args: Sequence[Any],
    given: list[torch.Tensor],
    context: tuple[Any, ...],
) -> bool:
    if len(wanted) != len(args):
        return False
    for expected, argument in zip(wanted, args, strict=True):
        kind = type(expected)
        if kind is Origin:
            if type(argument) is not TracedTensor or argument.place is not expected:
                return False
            if argument.recorder is not recorder:
                return False
            given.append(argument)
        elif expected is argument:
            continue
        elif kind is ModelArgument:
            if argument is not expected.tensor or not _is_as_known(expected):
                return False
            given.append(argument)
        elif kind is ScriptArgument:
            if not _is_of_script(recorder, expected, argument, context):
                return False
            given.append(argument)
        elif kind is NestedArgument:
            each = each_of(argument)
            if type(argument) is not expected.kind or names_of(argument) != expected.names:
                return False
            if not _are_given(recorder, expected.each, each, given, context):
                return False
        elif type(argument) is not kind or not are_same_values((expected,), (argument,)):
            return False
    return True


def each_of(argument: Any) -> Sequence[Any]:
    """Return the parts of a list, tuple, slice or dict; empty for others."""
    if isinstance(argument, slice):
        return argument.start, argument.stop, argument.step
    if isinstance(argument, dict):
        return tuple(argument.values())
    return argument if isinstance(argument, LISTS) else ()


def names_of(argument: Any) -> tuple[Any, ...]:
    """Return the names of a dict; empty for others."""
    return tuple(argument) if isinstance(argument, dict) else ()


def _is_as_known(known: ModelArgument) -> bool:
    tensor = known.tensor
    return tensor.requires_grad is known.requires_grad and tuple(tensor.shape) == known.shape


def _is_of_script(
    recorder: Any, known: ScriptArgument, given: Any, context: tuple[Any, ...]
) -> bool:
    if type(given) is not torch.Tensor or given.layout is not torch.strided:
        return False
    like = known.like
    if given.shape != like.shape or given.dtype != like.dtype or given.requires_grad:
        return False
    if recorder.is_owned(given) or recorder.fresh.is_taken(given):
        return False
    numbers = recorder.plain.copy_of(given)
    if numbers.stride() != like.strides:
        return False
    if known.numbers is not None and not have_equal_bits(known.numbers, numbers):
        return False
    value = recorder.plain.value_of(given, numbers)
    if not known.is_new:
        return bool(value is known.value)
    is_input = not context[Context._fields.index("is_of_model")] and recorder.takes_arguments
    is_input = is_input and recorder.plain.may_be_input(given)
    source = LeafSource.SCRIPT if is_input else recorder.plain.source_of(given)
    return value is None and source is known.source


class CallTree:
    """The calls of one part of the loop, on batches of one geometry.

    inputs: positions of the batch's tensors.
    is_whole: a step has been recorded to its end.
    """

    def __init__(self) -> None:
        self.first: list[CachedCall] = []
        self.inputs: list[Origin] = []
        self.is_whole = self.is_given_up = False
        self._misses = 0

    def hit(self) -> None:
        """Note a step that was known to its end."""
        self._misses = max(self._misses - 1, 0)

    def miss(self) -> None:
        """Note an unknown step, which took longer. After many, the tree is no longer used."""
        self._misses += 2
        if self._misses >= MOST_MISSES:
            self.first, self.is_given_up = [], True
