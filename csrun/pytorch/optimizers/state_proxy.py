"""Wrapper of the optimizer's `state` in a Session's block: reads use the store, writes are
refused.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Protocol, Self

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line


class StateOwner(Protocol):
    """State of the user's objects, as used by StateProxy."""

    @property
    def has_begun(self) -> bool:
        """True from the block's first step on."""

    @property
    def is_in_store(self) -> bool:
        """True if the user's objects may be given the store's values now."""

    def copy_back(self) -> None:
        """Give the user's objects the store's values."""

    def require_unchanged_state(self) -> None:
        """Raises: UsageError if the script has written the state since"""


class StateProxy(MutableMapping[Any, Any]):
    """Replacement of `optimizer.state` while the run's store has the state.

    A read returns the state after the steps so far. A write after the block's first step, or an
    assignment of another mapping, would not reach the store and is refused.

    own: the optimizer's mapping, restored after the block.
    """

    def __init__(self, owner: StateOwner, optimizer: torch.optim.Optimizer) -> None:
        self._owner, self._optimizer = owner, optimizer
        self.own: MutableMapping[Any, Any] = optimizer.state
        self._was_read = False

    @contextmanager
    def in_place(self) -> Iterator[Self]:
        """Context manager in which this object is the optimizer's state."""
        attributes = self._optimizer.__dict__
        attributes["state"] = self
        try:
            yield self
        finally:
            attributes["state"] = self.own

    def check_writes(self) -> None:
        """Check for writes, at the beginning of a step or the end of the block.

        Raises: UsageError if the script has written the state
        """
        if self._optimizer.__dict__["state"] is not self:
            raise state_written_error()
        if self._was_read:  # its tensors may have been written
            self._was_read = False
            self._owner.require_unchanged_state()

    def load(self, load_state_dict: Callable[[], None]) -> None:
        """Load a state_dict, for which PyTorch replaces its mapping.

        Raises: UsageError after the block's first step
        """
        if self._owner.has_begun:
            raise UsageError(
                f"{user_line()}: load_state_dict of the optimizer must be called before the first "
                "step of the Session's block: from then on the run's store has the state"
            )
        attributes = self._optimizer.__dict__
        attributes["state"] = self.own
        try:
            load_state_dict()
        finally:
            self.own, attributes["state"] = attributes["state"], self

    def _read(self) -> MutableMapping[Any, Any]:
        if self._owner.is_in_store:
            self._owner.copy_back()
            self._was_read = True
        return self.own

    def _write(self) -> MutableMapping[Any, Any]:
        if self._owner.has_begun:
            raise state_written_error()
        return self.own

    def __getitem__(self, parameter: Any) -> Any:
        return self._read()[parameter]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __setitem__(self, parameter: Any, state: Any) -> None:
        self._write()[parameter] = state

    def __delitem__(self, parameter: Any) -> None:
        del self._write()[parameter]

    def clear(self) -> None:
        """Clear the mapping; MutableMapping's own method does nothing if it is empty."""
        self._write().clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self._read(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict, dict(self._read()))


def unwrapped_state(optimizer: torch.optim.Optimizer) -> MutableMapping[Any, Any]:
    """Return the optimizer's own mapping, inside and outside a Session's block."""
    state: Any = optimizer.state
    return state.own if isinstance(state, StateProxy) else state


def state_written_error() -> UsageError:
    """Return the error for a write to the optimizer's state within a block."""
    return UsageError(
        f"{user_line()}: the optimizer's state is written in the Session's block after its first "
        "step, when the run's store has it: to start over, make a new optimizer and another "
        "Session after cbtorch.initialize(model_dir=...)"
    )
