"""Calls that the script defers to the end of the step, where they get plain numbers.

A call deferred by forward is repeated in each step: its arguments are additional results of
forward, with tokens in steps that do not run forward's Python.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils._pytree import register_pytree_node, tree_map

from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.tokens import LazyTensor


class LateCall:
    """A call of a function on values of a step."""

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs

    def run(self) -> None:
        """Make the call, with plain tensors in place of values of the step."""
        args, kwargs = tree_map(numbers_of, (self.args, dict(self.kwargs)))
        with unrecorded():
            self.func(*args, **kwargs)


class ForwardResults:
    """Results of forward with its deferred calls."""

    def __init__(self, results: Any, calls: list[LateCall]) -> None:
        self.results, self.calls = results, calls


class LateCalls:
    """Calls deferred to the end of the step, and those that forward defers."""

    def __init__(self) -> None:
        self._waiting: list[LateCall] = []
        self._of_forward: list[list[LateCall]] = []

    @property
    def is_in_forward(self) -> bool:
        """True while the model's forward runs in a Session's step."""
        return bool(self._of_forward)

    def leave(self, call: LateCall) -> None:
        """Defer a call to the end of the step."""
        (self._of_forward[-1] if self._of_forward else self._waiting).append(call)

    def within(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that also returns its deferred calls."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self._of_forward.append([])
            try:
                results = forward(*args, **kwargs)
            finally:
                calls = self._of_forward.pop()
            return ForwardResults(results, calls) if calls else results

        return called

    def released(self, results: Any) -> Any:
        """Return forward's own results, and defer the calls among them."""
        if type(results) is not ForwardResults:
            return results
        for call in results.calls:
            self.leave(call)
        return results.results

    def run(self) -> None:
        """Make the deferred calls, in order."""
        while self._waiting:
            self._waiting.pop(0).run()

    def clear(self) -> None:
        """Drop the deferred calls."""
        self._waiting.clear()


def numbers_of(leaf: Any) -> Any:
    """Return a plain tensor in place of a value of a step; other arguments unchanged."""
    if isinstance(leaf, LazyTensor):
        return leaf.tensor()
    return leaf.numbers() if isinstance(leaf, TracedTensor) else leaf


def _make_call(values: Iterable[Any], func: Callable[..., Any]) -> LateCall:
    args, kwargs = values
    return LateCall(func, tuple(args), kwargs)


register_pytree_node(LateCall, lambda c: ([list(c.args), dict(c.kwargs)], c.func), _make_call)
register_pytree_node(
    ForwardResults,
    lambda found: ([found.results, found.calls], None),
    lambda values, _: ForwardResults(*values),
)
late_calls = LateCalls()
