"""A call of a recorded step, described for later steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.recording import GraphLeaf, LeafSource, Ref
from csrun.pytorch.record.reuse.autograd_graph import WATCHING
from csrun.pytorch.record.reuse.cached_calls import (
    DENSE,
    LISTS,
    PLAIN,
    CachedCall,
    CachedLeaf,
    CachedResult,
    CallKind,
    Context,
    ModelArgument,
    NestedArgument,
    ScriptArgument,
    each_of,
    is_whole,
    names_of,
)
from csrun.pytorch.record.traced import Origin, TracedTensor

_STORED = LeafSource.PARAMETER, LeafSource.BUFFER
#: Attributes whose values are tensors, or do not concern autograd.
_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
#: Methods that change or reveal what autograd knows of a tensor.
_OF_AUTOGRAD = frozenset(
    {"requires_grad_", "detach_", "set_", "resize_", "resize_as_", "retain_grad", "is_leaf"}
    | {"register_hook", "register_post_accumulate_grad_hook", "_is_view", "__setstate__"}
)
_BACKWARD = torch.Tensor.backward


class _UnknownError(Exception):
    """Raised for a call that later steps cannot repeat."""


class CallDescription:
    """A call in progress. `known` describes it after its end."""

    def __init__(
        self,
        recorder: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        context: tuple[Any, ...],
    ) -> None:
        self._recorder, self._func, self._context = recorder, func, Context(*context)
        self._args, self._kwargs = args, kwargs
        self._given = [x for x in _leaves((*args, *kwargs.values())) if _is_tensor(x)]
        self._before = [self._state_of(x) for x in self._given]
        self._counts = self._counted()
        self._operators = len(recorder.operators)
        self._kinds, self._leaves = len(recorder.kinds), len(recorder.leaves)

    def known(self, result: Any, noted: Any) -> CachedCall | None:
        """Return the call, or None if later steps cannot repeat it. noted: as the loop's call."""
        try:
            return self._known(result, noted)
        except _UnknownError:
            return None

    def _known(self, result: Any, noted: Any) -> CachedCall:
        recorder, context = self._recorder, self._context
        if not is_cacheable(self._func) or context.are_saved_otherwise:
            raise _UnknownError
        if self._counted() != self._counts or recorder.fresh.has_taken:
            raise _UnknownError
        if self._func is _BACKWARD:
            return self._backward()
        is_recorded = len(recorder.kinds) > self._kinds or len(recorder.operators) > self._operators
        is_recorded |= any(isinstance(x, TracedTensor) for x in _leaves((result,)))
        made = CachedCall(
            CallKind.RECORDED if is_recorded else CallKind.LIVE,
            self._func,
            tuple(map(self._expected, self._args)),
            {name: self._expected(each) for name, each in self._kwargs.items()},
            context,
        )
        written = tuple(self._written())
        if not is_recorded:
            if written:
                raise _UnknownError
            return made
        made.operators = tuple(recorder.operators[self._operators :])
        made.kinds = tuple(recorder.kinds[self._kinds :])
        made.leaves = tuple(map(self._leaf, recorder.leaves[self._leaves :]))
        made.written, made.noted = written, noted
        made.results, made.kind = self._results(result)
        return made

    def _backward(self) -> CachedCall:
        recorder, parameters = self._recorder, self._recorder.parameters
        if recorder.backward.known is None:
            raise _UnknownError
        gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        if not all(isinstance(gradient, TracedTensor) for gradient in gradients.values()):
            raise _UnknownError
        places = {name: Origin() for name in gradients}
        for name, gradient in gradients.items():
            gradient.place = places[name]
        return CachedCall(
            CallKind.BACKWARD,
            self._func,
            tuple(map(self._expected, self._args)),
            {name: self._expected(each) for name, each in self._kwargs.items()},
            self._context,
            backward=recorder.backward.known,
            gradients=places,
        )

    def _counted(self) -> tuple[object, ...]:
        """Return counts that a known call must not change."""
        recorder = self._recorder
        written = len(recorder.writes.by_host.written) + recorder.counters.writes
        return recorder.draws.count, len(recorder.host.results), written

    # Arguments.

    def _state_of(self, given: torch.Tensor) -> Any:
        """Return the properties of a tensor that a call may change."""
        if isinstance(given, TracedTensor):
            return given.held, given.held.value, given.like, given.requires_grad
        if (known := self._recorder.known.get(id(given))) is not None:
            return known.held, known.held.value, known.like, given.requires_grad
        if type(given) is not torch.Tensor or self._recorder.is_owned(given):
            return None
        numbers = self._recorder.plain.copy_of(given)
        return self._recorder.plain.value_of(given, numbers)

    def _expected(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self._expected_tensor(argument)
        if type(argument) in PLAIN:
            return argument
        if type(argument) in (*LISTS, slice, dict):
            each = tuple(map(self._expected, each_of(argument)))
            return NestedArgument(type(argument), each, names_of(argument))
        raise _UnknownError

    def _expected_tensor(self, given: torch.Tensor) -> Any:
        recorder = self._recorder
        if isinstance(given, TracedTensor):
            if given.place is None or given.recorder is not recorder:
                raise _UnknownError
            return given.place
        if type(given) not in DENSE:
            raise _UnknownError
        if recorder.name_of(given) is not None:
            if not recorder.is_own(given):
                raise _UnknownError
            return ModelArgument(given, given.requires_grad, tuple(given.shape))
        if given.layout is not torch.strided:
            raise _UnknownError
        numbers = recorder.plain.copy_of(given)
        value = recorder.plain.value_of(given, numbers)
        leaf = next((x for x in recorder.leaves if x.value == value), None)
        if leaf is None or value is None:
            raise _UnknownError
        before = self._before[next(n for n, x in enumerate(self._given) if x is given)]
        one = len(recorder.operators) == self._operators + 1
        return ScriptArgument(
            value, Geometry.of(numbers), leaf.source, before is None, None if one else numbers
        )

    def _written(self) -> Iterator[tuple[int, Ref, bool]]:
        """Yield index, new value, and whether it needs a gradient, of written tensors."""
        for number, (given, before) in enumerate(zip(self._given, self._before, strict=True)):
            now = self._state_of(given)
            if not isinstance(now, tuple) or now == before:
                continue
            held, value, like, requires_grad = now
            if before is None:  # now a leaf
                first = next(x.value for x in self._recorder.leaves if x.tensor is given)
                if value != first:
                    yield number, value, requires_grad
                continue
            if held is not before[0] or like is not before[2] or not is_whole(given):
                raise _UnknownError
            yield number, value, requires_grad

    # Leaves and results.

    def _leaf(self, leaf: GraphLeaf) -> CachedLeaf:
        recorder = self._recorder
        made = recorder.known[id(leaf.tensor)]
        if type(made.like) is not Geometry:
            raise _UnknownError
        stored = made.memory.stored
        if leaf.source in _STORED:
            return CachedLeaf(leaf, made.like, stored, None)
        plain = [n for n, x in enumerate(self._given) if not isinstance(x, TracedTensor)]
        for number in plain:
            if recorder.plain.leaf_of(self._given[number]) == leaf.value:
                return CachedLeaf(leaf, made.like, stored, number)
        parameters = recorder.parameters.values()
        if leaf.source is not LeafSource.CONSTANT or any(
            all(self._given[n] is not p for p in parameters) for n in plain
        ):
            raise _UnknownError
        return CachedLeaf(leaf, made.like, stored, None)

    def _results(self, result: Any) -> tuple[tuple[CachedResult, ...], Callable[[Any], Any] | None]:
        if result is None:
            return (), None
        several = isinstance(result, LISTS)
        each = list(result) if several else [result]
        made: list[CachedResult] = []
        for one in each:
            made.append(self._result(one, each[: len(made)]))
        return tuple(made), type(result) if several else None

    def _result(self, result: Any, others: list[Any]) -> CachedResult:
        if not isinstance(result, TracedTensor) or type(result.like) is not Geometry:
            raise _UnknownError
        for number, given in enumerate(self._given):
            if given is result:
                return CachedResult(number)
        if result.place is not None:
            raise _UnknownError
        result.place = Origin()
        traced = [self._traced(given) for given in self._given]
        held_of = _first(getattr(x, "held", None) is result.held for x in traced)
        memory_of = _first(getattr(x, "memory", None) is result.memory for x in traced)
        if memory_of is None:
            of = _first(x.memory is result.memory for x in others)
            memory_of = None if of is None else of - len(others)
        return CachedResult(
            None,
            result.like,
            result.value,
            held_of,
            memory_of,
            result.requires_grad,
            result.place,
        )

    def _traced(self, given: torch.Tensor) -> TracedTensor | None:
        if isinstance(given, TracedTensor):
            return given
        known: TracedTensor | None = self._recorder.known.get(id(given))
        return known


def is_cacheable(func: Any) -> bool:
    """Return whether a function neither changes nor reveals what autograd knows of a tensor."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return str(func.__self__.__name__) in _ATTRIBUTES
    if name in ("__set__", "__delete__"):
        return str(func.__self__.__name__) == "grad"
    return name not in _OF_AUTOGRAD and func not in WATCHING


def _first(are: Iterable[bool]) -> int | None:
    """Return the index of the first true element."""
    return next((number for number, each in enumerate(are) if each), None)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor)


def _leaves(arguments: Any) -> Iterator[Any]:
    for argument in arguments:
        if type(argument) in (slice, dict) or isinstance(argument, LISTS):
            yield from _leaves(each_of(argument))
        else:
            yield argument
