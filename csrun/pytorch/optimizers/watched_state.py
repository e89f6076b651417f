"""The optimizer's `state` in a Session's block: read as the store has it, refused where written."""

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from copy import deepcopy
from typing import Any, Protocol

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line


class Loop(Protocol):
    """What a block's loop answers about its steps and its store."""

    has_begun: bool

    @property
    def is_apart(self) -> bool:
        """Whether the user's own objects may be given the store's values now."""

    def give_back(self) -> None:
        """Give the user's own objects the store's values."""

    def require_state_as_given(self) -> None:
        """Raises: UsageError where the script has written into the state since it was given"""


class WatchedState(MutableMapping[Any, Any]):
    """Stands for `optimizer.state` while the run's store has the state.

    A read gives what the steps so far have made of it. A write after the block's first step would
    change nothing in the store, as would another mapping in this one's place: both are refused.

    own: the optimizer's mapping, which it has again after the block
    """

    def __init__(self, loop: Loop, optimizer: torch.optim.Optimizer) -> None:
        self._loop, self._optimizer = loop, optimizer
        self.own: MutableMapping[Any, Any] = optimizer.state
        self._was_read = False

    def look(self) -> None:
        """A step begins, or the block ends.

        Raises: UsageError where the script has written into the state
        """
        if self._optimizer.__dict__["state"] is not self:
            raise written()
        if self._was_read:  # its tensors may have been written
            self._was_read = False
            self._loop.require_state_as_given()

    def _read(self) -> MutableMapping[Any, Any]:
        if self._loop.is_apart:
            self._loop.give_back()
            self._was_read = True
        return self.own

    def _write(self) -> MutableMapping[Any, Any]:
        if self._loop.has_begun:
            raise written()
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
        """Remove all; MutableMapping's own would write nothing where the mapping is empty."""
        self._write().clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self._read(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict, dict(self._read()))


def own_state(optimizer: torch.optim.Optimizer) -> MutableMapping[Any, Any]:
    """Return the optimizer's own mapping, in a Session's block and outside of it."""
    state: Any = optimizer.state
    return state.own if isinstance(state, WatchedState) else state


def written() -> UsageError:
    """Return the refusal of a write into the optimizer's state within a block."""
    return UsageError(
        f"{user_line()}: the optimizer's state is written in the Session's block after its first "
        "step, when the run's store has it: to start over, make a new optimizer and another "
        "Session after cbtorch.initialize(model_dir=...)"
    )
