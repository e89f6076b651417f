"""Calls of an optimizer's step, whose closure is part of the loop."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from csrun.pytorch.loop.updating_step import UpdatingStep


class UpdatedLoop(Protocol):
    """The loop, as used here."""

    def begin_update(
        self, optimizer: torch.optim.Optimizer, has_gradients: bool
    ) -> UpdatingStep | None:
        """Check and create what an optimizer updates; return the open step, if any."""

    def require_step(self) -> UpdatingStep:
        """Return the open step."""


class OptimizerCalls:
    """The call of a `step()` that is in progress, if any.

    Its operators are an update. Those of its closure, which it may call at any place and several
    times, are the loop's.
    """

    def __init__(self, loop: UpdatedLoop) -> None:
        self._loop = loop
        self._optimizer: torch.optim.Optimizer | None = None
        self._open = ExitStack()

    @property
    def is_open(self) -> bool:
        """True in a `step()`, outside of its closure."""
        return self._optimizer is not None

    @contextmanager
    def of(self, optimizer: torch.optim.Optimizer, has_gradients: bool) -> Iterator[None]:
        """Record an optimizer's step. has_gradients: it has no closure, which computes them.

        Raises: UsageError if it is outside of a step of the loop
        """
        self._optimizer = optimizer
        try:
            self._begin(optimizer, has_gradients)
            yield
            self.note(optimizer)
        finally:
            self._open.close()
            self._optimizer = None

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has made its step. Raises: UsageError as `of`"""
        self._loop.require_step().updated.add(id(optimizer))

    def within(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that the step can call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._open.close()
            optimizer, self._optimizer = self._optimizer, None
            assert optimizer is not None, "called by its step"
            try:
                result = closure(*args, **kwargs)
            finally:
                self._optimizer = optimizer
            self._begin(optimizer)
            return result

        return call

    def _begin(self, optimizer: torch.optim.Optimizer, has_gradients: bool = True) -> None:
        """Record an update from here on, if a step has begun."""
        step = self._loop.begin_update(optimizer, has_gradients)
        if step is not None:
            self._open.enter_context(step.updating())
