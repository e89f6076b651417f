"""Operators that a step calls at the same position as an earlier recorded step.

Since steps repeat, an operator with equal operands reuses the entry of the earlier recording:
nothing is computed again, and a comparison of both recordings finds one object. Everything else is
recorded normally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch

from csrun.pytorch.record.equal_bits import are_same_values
from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import RecordedOperator, Ref, TensorKind, returns_view
from csrun.pytorch.record.reuse.cached_backward import CachedBackwards
from csrun.pytorch.record.reuse.cached_calls import CallTree
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.traced import TracedStorage, TracedTensor, note_bases

MOST_TREES = 64
MOST_CALLS = 8  # calls at one position, for graphs that alternate
_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = frozenset({bool, int, float, str, NoneType, *_TYPES})
_LISTS = (list, tuple)


class _Operand(NamedTuple):
    """A traced tensor among the arguments of a call."""

    value: Ref
    like: Geometry


class _NestedOperand(NamedTuple):
    """A list or tuple among the arguments of a call."""

    kind: type[Any]
    each: tuple[Any, ...]


@dataclass(frozen=True, eq=False, slots=True)
class OperatorCall:
    """A call of an ATen operator, with all that its recording has computed.

    arguments, keywords: with an _Operand for each tensor.
    likes: geometries of the results.
    kind: type of their sequence, if there is one.
    first: number of the first result.
    kinds: of all results that are tensors.
    is_view: they share the memory of the first argument.
    dtype: PyTorch's default type.
    """

    func: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    likes: Sequence[Geometry | None]
    kind: Callable[[Any], Any] | None
    first: int
    kinds: tuple[TensorKind, ...]
    operator: RecordedOperator
    is_view: bool
    dtype: torch.dtype


class _RepeatingRecorder(Protocol):
    """The recorder, as used here."""

    operators: list[RecordedOperator]
    kinds: list[TensorKind]
    scopes: Scopes

    @property
    def has_loss(self) -> bool: ...

    def of_model(self, given: Any) -> TracedTensor | None: ...


class CachedOperators:
    """Operators of the recorded steps of one part of the loop, their backward passes and calls."""

    def __init__(self) -> None:
        self._calls: dict[int, list[OperatorCall]] = {}
        self.backwards = CachedBackwards()
        self._trees: dict[tuple[Geometry, ...], CallTree] = {}

    def tree(self, batch: tuple[Geometry, ...]) -> CallTree:
        """Return the known calls of steps on batches of one geometry."""
        if batch not in self._trees and len(self._trees) >= MOST_TREES:
            self._trees.clear()
        return self._trees.setdefault(batch, CallTree())

    def at(self, number: int) -> Sequence[OperatorCall]:
        """Return the calls that were operators with a number, latest first."""
        return self._calls.get(number, ())

    def add(self, number: int, call: OperatorCall) -> None:
        """Add a call, or make it the latest."""
        calls = self._calls.setdefault(number, [])
        if call in calls:
            calls.remove(call)
        calls.insert(0, call)
        del calls[MOST_CALLS:]


class OperatorCache:
    """Operators of one recording that may equal known ones."""

    def __init__(self, recorder: _RepeatingRecorder) -> None:
        self._recorder = recorder
        self.known = CachedOperators()

    def results(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], forward: int | None = None
    ) -> Any:
        """Record a call of an earlier recording and return its results; None if it differs."""
        number = len(self._recorder.operators)
        calls = self.known.at(number)
        for call in calls:
            if call.func is not func:
                continue
            given = self._operands(call, args, kwargs, forward)
            if given is None:
                continue
            if call is not calls[0]:
                self.known.add(number, call)
            return self._record(call, given, kwargs)
        return None

    def _operands(
        self, call: OperatorCall, args: Any, kwargs: Mapping[str, Any], forward: int | None
    ) -> list[Any] | None:
        """Return the arguments of a call with traced tensors; None if it differs."""
        recorder, operator = self._recorder, call.operator
        given = _traced(call.arguments, args, recorder.of_model)  # which may add leaves
        if call.first != len(recorder.kinds) or operator.forward != forward:
            return None
        if given is None or ((kwargs or call.keywords) and not _are_equal(call.keywords, kwargs)):
            return None
        if operator.is_backward and not recorder.has_loss:
            return None
        if call.dtype is not torch.get_default_dtype() or not recorder.scopes.repeats(operator):
            return None
        return given

    def _record(self, call: OperatorCall, given: list[Any], kwargs: Mapping[str, Any]) -> Any:
        recorder: Any = self._recorder
        recorder.operators.append(call.operator)
        recorder.kinds += call.kinds
        if call.kind is None and not call.is_view:
            value: Any = call.operator.results[0]
            return TracedTensor(call.likes[0], value, TracedStorage(), recorder)
        memory = given[0].memory if call.is_view else None
        results = [
            None if ref is None else TracedTensor(like, ref, memory or TracedStorage(), recorder)
            for like, ref in zip(call.likes, call.operator.results, strict=True)
        ]
        if call.is_view:
            note_bases(results, call.func, given, kwargs)
        return results[0] if call.kind is None else call.kind(results)

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        likes: Sequence[Any],
        kind: Callable[[Any], Any] | None,
    ) -> None:
        """Store the call of the operator that was recorded last, if it can be compared directly.

        likes, kind: of its results.
        """
        if not likes or likes[0] is None:
            return
        if not all(like is None or type(like) is Geometry for like in likes):
            return
        if not all(map(_is_known, kwargs.values())) or not all(map(_is_known, args)):
            return
        operator = self._recorder.operators[-1]
        first = operator.results[0]
        assert first is not None, "it has a geometry"
        made = OperatorCall(
            func,
            tuple(map(_kept, args)),
            {name: _kept(each) for name, each in kwargs.items()},
            likes,
            kind,
            first.number,
            tuple(self._recorder.kinds[first.number :]),
            operator,
            returns_view(func),
            torch.get_default_dtype(),
        )
        self.known.add(len(self._recorder.operators) - 1, made)


def _is_plain(argument: Any) -> bool:
    return type(argument) in _PLAIN


def _is_known(argument: Any) -> bool:
    if type(argument) in _LISTS:
        return all(map(_is_known, argument))
    if type(argument) is TracedTensor:
        return type(argument.like) is Geometry
    return _is_plain(argument)


def _kept(argument: Any) -> Any:
    if type(argument) is TracedTensor:
        return _Operand(argument.value, argument.like)
    if type(argument) in _LISTS:
        return _NestedOperand(type(argument), tuple(map(_kept, argument)))
    return argument


def _traced(
    wanted: Sequence[Any], given: Sequence[Any], of_model: Callable[[Any], Any]
) -> list[Any] | None:
    """Return the arguments of a call with traced tensors; None if they are not the expected
    ones.
    """
    if len(wanted) != len(given):
        return None
    found: list[Any] = []
    for expected, argument in zip(wanted, given, strict=True):
        kind = type(expected)
        if kind is _Operand:
            own = argument if type(argument) is TracedTensor else of_model(argument)
            value, like = expected
            if own is None or own.like is not like or own.held.value is not value:
                return None
            found.append(own)
        elif kind is _NestedOperand:
            is_same_kind = type(argument) is expected.kind
            each = _traced(expected.each, argument, of_model) if is_same_kind else None
            if each is None:
                return None
            found.append(expected.kind(each))
        elif argument is expected or (
            type(argument) is kind and are_same_values((argument,), (expected,))
        ):
            found.append(argument)
        else:
            return None
    return found


def _are_equal(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    if list(wanted) != list(given):
        return False
    return _traced(tuple(wanted.values()), tuple(given.values()), _is_no_tensor) is not None


def _is_no_tensor(argument: Any) -> None:
    """Return None: a keyword argument is never a tensor of the model."""
