"""Integer and boolean buffers of the model in a recorded step, which the program does not have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.recording import GraphLeaf
from csrun.pytorch.record.scopes import Scopes


class _CountingRecorder(Protocol):
    """The recorder, as far as it is needed here."""

    has_updates: bool
    scopes: Scopes

    def counter_name(self, tensor: torch.Tensor) -> str | None: ...

    def note_varying(self, what: str) -> None: ...


class CountedBuffers:
    """Buffers that forward counts up, such as batch norm's counter, or branches on.

    increments: of a step, by name. If each step is recorded they are empty: the loop counts itself.
    """

    def __init__(self, recorder: _CountingRecorder) -> None:
        self._recorder = recorder
        self.increments: dict[str, int] = defaultdict(int)

    def counts_up(self, func: Any, given: Sequence[torch.Tensor], args: Any) -> bool:
        """True if an operator increments an integer buffer: it is counted."""
        recorder = self._recorder
        name = recorder.counter_name(given[0])
        if name is None or len(given) > 1 or func is not torch.ops.aten.add_.Tensor:
            return False
        if recorder.has_updates:
            call_for_user(func, args, {})
            return True
        self.increments[name] += int(args[1])
        return True

    def is_readable(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is such a buffer, and its number can be read during the step.

        Raises: CaptureError if forward reads a counter that csrun updates only after the run
        """
        recorder = self._recorder
        name = recorder.counter_name(tensor)
        if name is None or recorder.has_updates:
            return name is not None
        if tensor.dtype is torch.bool:  # a switch, which no step counts up
            recorder.note_varying(f"forward reads {name}")
            return True
        recorder.scopes.refuse_counter_in_forward(name)
        return False

    def require_unused(self, leaves: Iterable[GraphLeaf]) -> None:
        """Raises: CaptureError if forward computes with a buffer that it counts up"""
        for leaf in leaves:
            if leaf.name in self.increments:
                raise CaptureError(
                    f"{user_line()}: forward reads the integer buffer {leaf.name}, which it counts "
                    "up and which csrun updates only after the run: make it a float buffer"
                )
