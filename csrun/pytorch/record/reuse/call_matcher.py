"""Calls of a recorded step that repeat those of an earlier one.

As long as each call is known, the step's operators and results are taken from the earlier
recording, without autograd and PyTorch's dispatcher. At the first unknown call, all calls so far
are repeated in PyTorch, and the loop's tensors become their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch.autograd import function

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import leaves_of, map_arguments, tensors_in
from csrun.pytorch.record.equal_bits import have_equal_bits
from csrun.pytorch.record.recording import GraphLeaf
from csrun.pytorch.record.reuse.autograd_graph import have_hooks
from csrun.pytorch.record.reuse.cached_calls import (
    DENSE,
    CachedCall,
    CachedLeaf,
    CachedResult,
    CallKind,
    CallTree,
    context_now,
)
from csrun.pytorch.record.reuse.call_description import CallDescription
from csrun.pytorch.record.traced import Origin, TracedStorage, TracedTensor

_TELLING = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "grad", "itemsize")
#: Functions whose result each traced tensor knows.
_GETTERS = frozenset(
    {getattr(torch.Tensor, name).__get__ for name in _TELLING}
    | {getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "ndimension")}
    | {getattr(torch.Tensor, name) for name in ("is_floating_point", "is_complex", "is_contiguous")}
)


class _MatchedCall(NamedTuple):
    """A known call of this step. numbers: of the script's tensors among the arguments, by id.

    results: tensors that the loop received from it.
    """

    call: CachedCall
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    numbers: Mapping[int, torch.Tensor]
    results: list[TracedTensor]


class UnknownCalls(NamedTuple):
    """Functions that make unknown calls. found: the loop's own calls so far.

    make: records a call.
    is_of_model: True within the model.
    """

    make: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
    found: list[Any]
    is_of_model: Callable[[], bool]
    within_model: Callable[[bool], Any]


class CallMatcher:
    """The calls of one step. tree: known calls."""

    def __init__(self, recorder: Any, tree: CallTree, making: UnknownCalls) -> None:
        self._recorder, self._tree, self._making = recorder, tree, making
        self._is_over = tree.is_given_up
        self._is_following = tree.is_whole and not tree.is_given_up
        self._is_making = False
        self._log: list[_MatchedCall] = []
        if not self._is_following:
            tree.first.clear()
        self._next = tree.first
        self._branch: tuple[list[CachedCall], CachedCall] | None = None  # the first learned call
        self._place_inputs()

    def _place_inputs(self) -> None:
        recorder, places = self._recorder, self._tree.inputs
        for number, leaf in enumerate(recorder.leaves):
            if number == len(places):
                places.append(Origin())
            recorder.known[id(leaf.tensor)].place = places[number]

    def __enter__(self) -> Self:
        self._is_setup_defined = own = function._is_setup_context_defined

        def asked(of: Any) -> Any:  # by each call of a script's own Function, before anything else
            self.leave()  # its backward pass is the user's Python
            return own(of)

        function._is_setup_context_defined = asked
        return self

    def __exit__(self, *error: object) -> None:
        function._is_setup_context_defined = self._is_setup_defined

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call of the step."""
        if self._is_over or self._is_making:
            return self._making.make(func, args, kwargs)
        if func in _GETTERS and type(args[0]) in DENSE:
            with torch._C.DisableTorchFunction():
                return call_for_user(func, args, kwargs)
        self._is_making = True
        try:
            return self._call(func, args, kwargs)
        finally:
            self._is_making = False

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._is_following:
            with torch._C.DisableTorchFunction():
                known, given = self._find(func, args, kwargs)
                if known is not None and known.effect is not CallKind.LIVE:
                    return self._repeat(known, given, args, kwargs)
            if known is None and self._is_of_step(args, kwargs):
                self._fall_back()
            else:
                if known is not None:
                    self._next = known.after
                return self._make_live(func, args, kwargs)
        return self._learn(func, args, kwargs)

    def leave(self) -> None:
        """Stop following known calls and learning new ones, because other calls are missing."""
        if self._is_over or self._is_making:
            return
        with self._making_one():
            if self._is_following:
                self._fall_back()
            self._forget()

    def observe_operator(self, args: Any, kwargs: Any) -> None:
        """Note an operator that no PyTorch function has called, such as a script's own.

        Raises: CaptureError if autograd has already seen its operands, which it must not
        """
        if self._is_over or self._is_making:
            return
        if not any(isinstance(x, TracedTensor) for x in leaves_of(args, kwargs)):
            return
        self._leave_after_hidden_call()

    def _leave_after_hidden_call(self) -> None:
        if self._is_following:
            raise self._recorder.refusal(
                "an operator that PyTorch's functions do not call, as in torch.jit.script, was not "
                "called in earlier steps: call it in each step, or rewrite it with PyTorch's"
            )
        self._forget()

    def _make_live(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a call that records nothing."""
        kinds = self._recorder.kinds
        count = len(kinds)
        result = self._making.make(func, args, kwargs)
        if len(kinds) != count:
            self._leave_after_hidden_call()
        return result

    def end(self) -> None:
        """End the step."""
        self._log.clear()
        if self._is_following:
            self._tree.hit()
        elif not self._is_over:
            self._tree.is_whole = True
        self._is_over = True

    def _context(self) -> tuple[Any, ...]:
        return context_now(self._making.is_of_model(), self._recorder.scopes.module)

    def _is_of_step(self, args: Any, kwargs: Any) -> bool:
        """True if a call has a traced tensor, or one of the model's."""
        given = tensors_in(args, kwargs)
        return any(type(x) not in DENSE or self._recorder.is_recorded(x) for x in given)

    @contextmanager
    def _making_one(self) -> Iterator[None]:
        self._is_making = True
        try:
            yield
        finally:
            self._is_making = False

    # Unknown calls.

    def _learn(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call, and learn it."""
        recorder, found = self._recorder, self._making.found
        if not self._is_of_step(args, kwargs):
            return self._make_live(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            learned = CallDescription(recorder, _own(func), args, kwargs, self._context())
        noted = len(found)
        result = self._making.make(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            known = learned.known(result, found[-1] if len(found) > noted else None)
        if known is None:
            self._forget()
            return result
        if self._branch is None:
            self._branch = self._next, known
        self._next.insert(0, known)
        self._next = known.after
        return result

    def _forget(self) -> None:
        """Stop learning in this step, and forget what was learned."""
        self._is_over = True
        self._tree.miss()
        if self._branch is not None and self._branch[1] in self._branch[0]:
            self._branch[0].remove(self._branch[1])

    # Known calls.

    def _find(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[CachedCall | None, list[Any]]:
        """Return the known call that matches, and the tensors among its arguments."""
        func, context = _own(func), self._context()
        for known in self._next:
            given: list[torch.Tensor] = []
            if known.is_made(self._recorder, func, args, kwargs, context, given):
                if known.effect is CallKind.BACKWARD and have_hooks(
                    self._recorder.parameters.values()
                ):
                    return None, []
                return known, given
        return None, []

    def _repeat(
        self, known: CachedCall, given: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a known call, and return its results."""
        self._next = known.after
        if known.effect is CallKind.BACKWARD:
            self._log.append(_MatchedCall(known, args, kwargs, {}, self._backward(known, args[0])))
            return None
        recorder = self._recorder
        recorder.operators += known.operators
        recorder.kinds += known.kinds
        numbers: dict[int, torch.Tensor] = {}
        for leaf in known.leaves:
            self._add_leaf(leaf, given, numbers)
        results = self._results(known, given)
        for number, value, requires_grad in known.written:
            target = given[number]
            self._traced(target).held.value = value
            if target.requires_grad != requires_grad:
                target.requires_grad_(requires_grad)
        if known.noted is not None:
            self._making.found.append(known.noted)
        self._log.append(_MatchedCall(known, args, kwargs, numbers, results))
        if not results:
            return None
        return results[0] if known.kind is None else known.kind(results)

    def _results(self, known: CachedCall, given: list[Any]) -> list[TracedTensor]:
        results: list[TracedTensor] = []
        for of in known.results:
            if of.same_as is not None:
                results.append(given[of.same_as])
            else:
                results.append(self._result(of, given, results))
        return results

    def _result(
        self, known: CachedResult, given: list[Any], others: list[TracedTensor]
    ) -> TracedTensor:
        held: Any = known.value
        if known.held_of is not None:
            held = self._traced(given[known.held_of]).held
        memory = TracedStorage()
        if (of := known.memory_of) is not None:
            memory = (others[of] if of < 0 else self._traced(given[of])).memory
        assert known.like is not None, "it is a new one"
        made = TracedTensor(known.like, held, memory, self._recorder, True, known.requires_grad)
        made.place = known.place
        return made

    def _traced(self, given: Any) -> TracedTensor:
        return given if type(given) is TracedTensor else self._recorder.known[id(given)]

    def _add_leaf(
        self, known: CachedLeaf, given: list[Any], numbers: dict[int, torch.Tensor]
    ) -> None:
        recorder, leaf = self._recorder, known.leaf
        made = TracedTensor(known.like, leaf.value, TracedStorage(known.stored), recorder)
        if known.given is not None:
            tensor = given[known.given]
            recorder.counters.read([tensor])
            own = numbers[id(tensor)] = recorder.plain.copy_of(tensor)
            leaf = GraphLeaf(leaf.value, leaf.source, leaf.name, own)
            recorder.plain.note_leaf(tensor, own, made, leaf)
        recorder.leaves.append(leaf)
        recorder.known[id(leaf.tensor)] = made

    def _backward(self, known: CachedCall, loss: torch.Tensor) -> list[TracedTensor]:
        recorder = self._recorder
        assert known.backward is not None, "it is known"
        recorder.backward.start(loss)
        known.backward.repeat(recorder)
        gradients: list[Any] = [recorder.parameters[name].grad for name in known.gradients]
        for gradient, place in zip(gradients, known.gradients.values(), strict=True):
            gradient.place = place
        recorder.backward.finish()
        return gradients

    # Known calls that are made after all.

    def _fall_back(self) -> None:
        """Make all calls so far in PyTorch, and stop following."""
        self._is_following = False
        self._tree.miss()
        log, self._log = self._log, []
        parameters = self._recorder.parameters
        with ExitStack() as restored:
            with torch._C.DisableTorchFunction():
                gradients = {name: p.grad for name, p in parameters.items()}
                for parameter in parameters.values():
                    parameter.grad = None
            restored.enter_context(_without_saving_hooks())
            self._recorder.restart()
            for made in log:
                self._repeat_calls(made)
        with torch._C.DisableTorchFunction():
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]

    def _repeat_calls(self, made: _MatchedCall) -> None:
        call, found = made.call, self._making.found
        args, kwargs = map_arguments(
            lambda x: _as_it_was(x, made.numbers), made.args, dict(made.kwargs)
        )
        count, leaves = len(found), self._recorder.leaves
        first = len(leaves)
        with (
            call.context.again(),
            self._recorder.scopes.within(call.context.scope),
            self._making.within_model(call.context.is_of_model),
        ):
            results = self._making.make(call.func, args, kwargs)
        del found[count:]
        for number, known in enumerate(call.leaves, first):  # with their own lines
            leaves[number] = replace(leaves[number], name=known.leaf.name)
        with torch._C.DisableTorchFunction():
            if call.effect is CallKind.BACKWARD:
                self._take_gradients(call, made.results)
                return
            each = results if isinstance(results, list | tuple) else (results,)
            for handed, real in zip(made.results, each, strict=False):  # None is not a result
                if handed is not real:
                    handed.replace_by(real)

    def _take_gradients(self, call: CachedCall, handed: list[TracedTensor]) -> None:
        for name, gradient in zip(call.gradients, handed, strict=True):
            parameter = self._recorder.parameters[name]
            real: Any = parameter.grad
            parameter.grad = None
            gradient.replace_by(real)
            parameter.grad = gradient


def _own(func: Any) -> Any:
    """Return PyTorch's function, which a step replaces."""
    return getattr(func, "__wrapped__", func)


def _as_it_was(argument: Any, numbers: Mapping[int, torch.Tensor]) -> Any:
    """Return a tensor of the script with the numbers at the call."""
    own = numbers.get(id(argument))
    return argument if own is None or have_equal_bits(own, argument) else own


@contextmanager
def _without_saving_hooks() -> Iterator[None]:
    """Context manager in which autograd saves tensors without hooks."""
    hooks = []
    while (pair := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)
