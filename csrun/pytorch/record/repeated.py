"""Operators that a step calls in the places where the last recorded step has called them.

Steps repeat. Where an operator and its operands are those of the last recording, that recording's
entry is taken as it is: nothing of it is computed again, and a comparison of both recordings finds
one object. All else is recorded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch

from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import RecordedOperator, Ref, TensorKind, returns_view
from csrun.pytorch.record.same_numbers import are_same_values
from csrun.pytorch.record.scopes import Scopes
from csrun.pytorch.record.traced import TracedStorage, TracedTensor, note_bases

_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = frozenset({bool, int, float, str, NoneType, *_TYPES})
_LISTS = (list, tuple)


class _Operand(NamedTuple):
    """A traced tensor among the arguments of a call."""

    value: Ref
    like: Geometry


class _Several(NamedTuple):
    """A list or tuple among the arguments of a call."""

    kind: type[Any]
    each: tuple[Any, ...]


class OperatorCall(NamedTuple):
    """A call of an ATen operator, with all that its recording has made of it.

    arguments: an _Operand for each tensor. likes: geometries of the results. kind: makes their
    sequence, if there is one. first: number of the first result. kinds: of all that are tensors.
    is_view: they share the memory of the first argument. dtype: PyTorch's default one.
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
    """The recorder, as far as it is needed here."""

    operators: list[RecordedOperator]
    kinds: list[TensorKind]
    scopes: Scopes

    @property
    def has_loss(self) -> bool: ...

    def of_model(self, given: Any) -> TracedTensor | None: ...


class RepeatedOperators:
    """Operators of one recording that may be those of the last one.

    last: calls of the last recording, by the numbers of their operators; calls: of this one.
    """

    def __init__(self, recorder: _RepeatingRecorder) -> None:
        self._recorder = recorder
        self.last: Mapping[int, OperatorCall] = {}
        self.calls: dict[int, OperatorCall] = {}

    def results(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Record a call of the last recording and return its results; None if it is another."""
        recorder: Any = self._recorder
        number = len(recorder.operators)
        call = self.last.get(number)
        if call is None or call.func is not func:
            return None
        given = _traced(call.arguments, args, recorder.of_model)
        if given is None or call.first != len(recorder.kinds):
            return None
        if (kwargs or call.keywords) and not _are_equal(call.keywords, kwargs):
            return None
        operator = call.operator
        if operator.is_backward and not recorder.has_loss:
            return None
        if call.dtype is not torch.get_default_dtype() or not recorder.scopes.repeats(operator):
            return None
        self.calls[number] = call
        recorder.operators.append(operator)
        recorder.kinds += call.kinds
        memory = given[0].memory if call.is_view else None
        results = [
            None if ref is None else TracedTensor(like, ref, memory or TracedStorage(), recorder)
            for like, ref in zip(call.likes, operator.results, strict=True)
        ]
        if call.is_view:
            note_bases(results, func, given, kwargs)
        return results[0] if call.kind is None else call.kind(results)

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        likes: Sequence[Any],
        kind: Callable[[Any], Any] | None,
    ) -> None:
        """Note the call of the operator that was recorded last, if it can be compared at once.

        likes, kind: of its results
        """
        if likes[0] is None or not all(like is None or type(like) is Geometry for like in likes):
            return
        if not all(map(_is_plain, kwargs.values())) or not all(map(_is_known, args)):
            return
        number, operator = len(self._recorder.operators) - 1, self._recorder.operators[-1]
        first = operator.results[0]
        assert first is not None, "it has a geometry"
        self.calls[number] = OperatorCall(
            func,
            tuple(map(_kept, args)),
            kwargs,
            likes,
            kind,
            first.number,
            tuple(self._recorder.kinds[first.number :]),
            operator,
            returns_view(func),
            torch.get_default_dtype(),
        )


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
        return _Several(type(argument), tuple(map(_kept, argument)))
    return argument


def _traced(
    wanted: Sequence[Any], given: Sequence[Any], of_model: Callable[[Any], Any]
) -> list[Any] | None:
    if len(wanted) != len(given):
        return None
    found: list[Any] = []
    for expected, argument in zip(wanted, given, strict=True):
        kind = type(expected)
        if kind is _Operand:
            own = argument if type(argument) is TracedTensor else of_model(argument)
            if own is None or own.like is not expected.like or own.value is not expected.value:
                return None
            found.append(own)
        elif kind is _Several:
            is_alike = type(argument) is expected.kind
            each = _traced(expected.each, argument, of_model) if is_alike else None
            if each is None:
                return None
            found.append(expected.kind(each))
        elif type(argument) is kind and are_same_values((argument,), (expected,)):
            found.append(argument)
        else:
            return None
    return found


def _are_equal(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    if list(wanted) != list(given) or list(map(type, wanted.values())) != list(
        map(type, given.values())
    ):
        return False
    return are_same_values(tuple(wanted.values()), tuple(given.values()))
