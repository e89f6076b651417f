"""Closures of optimizers that call them once, before they update, as nearly all do."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line


class OpenStep(Protocol):
    """The recorded step, as used here."""

    def values_of(self, params: Iterable[torch.Tensor]) -> list[Any]:
        """Return objects that tell the parameters' current values."""


class CalledClosure:
    """A closure that was called before its optimizer's step, which gets its result.

    The step must call it as if it were called then: once, and before a write to a parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, result: Any) -> None:
        self._optimizer, self._result = optimizer, result

    def step(self, own: Callable[..., Any], recorded: OpenStep) -> Any:
        """Call the optimizer's own step. Raises: UsageError if it uses the closure otherwise"""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        before, calls = recorded.values_of(params), 0

        def closure() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 or recorded.values_of(params) != before:
                raise closure_error(self._optimizer)
            return self._result

        found = own(closure)
        if not calls:
            raise closure_error(self._optimizer)
        return found


def closure_error(optimizer: torch.optim.Optimizer) -> UsageError:
    """Return the error about an optimizer that uses its closure in another way."""
    name = type(optimizer).__name__
    return UsageError(
        f"{user_line()}: {name}.step() does not call its closure once and before it writes weights:"
        f" give the Session an optimizer whose step(self, closure) has no default for closure, so "
        "that the host computes its updates"
    )
