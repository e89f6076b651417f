"""Parameters that forward writes before it uses them, as in data-dependent initialization.

The host computes their new values in mid-step, and the step then starts from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.errors import CaptureError
from csrun.pytorch.record.recording import (
    LeafSource,
    RecordedOperator,
    Ref,
    ancestors_of,
)
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

_PREFIX = f"{LeafSource.PARAMETER} "


class _WritingRecorder(Protocol):
    """The recorder, as used here."""

    operators: list[RecordedOperator]
    may_read_in_forward: bool
    reader: Callable[[TracedTensor], torch.Tensor]

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]: ...

    def traced(self, tensor: torch.Tensor) -> TracedTensor: ...

    def note_varying(self, what: str) -> None: ...


class HostWrites:
    """Writes of one recording.

    written: parameters whose values differ from the run's store.
    stale: values that the step has computed from their earlier ones, with the parameter.
    """

    def __init__(self, recorder: _WritingRecorder) -> None:
        self._recorder = recorder
        self.written: dict[str, torch.nn.Parameter] = {}
        self._own: set[int] = set()  # operators that compute the values: nothing else needs them
        self.stale: dict[Ref, str] = {}

    def write(self, target: TracedTensor, compute: Callable[[], TracedTensor]) -> bool:
        """Write a parameter; False for another tensor, a part, or one that the step has already
        used.

        compute: records the operator of its new value.
        """
        recorder, stored = self._recorder, target.memory.stored
        if not stored.startswith(_PREFIX) or not recorder.may_read_in_forward:
            return False
        name = stored.removeprefix(_PREFIX)
        parameter = recorder.parameters[name]
        own = recorder.traced(parameter)
        if own.geometry != target.geometry or is_meta(parameter):
            return False
        new = compute()
        if not self._take_operators(own.value, new.value, stored):
            return False
        recorder.note_varying(f"forward writes {stored}")
        numbers = recorder.reader(new)
        with unrecorded(), torch.no_grad():
            parameter.copy_(numbers)
        self.written[name] = parameter
        return True

    def _take_operators(self, before: Ref, new: Ref, stored: str) -> bool:
        """Find the operators that compute a parameter's new value from the one before.

        False if others use the value before, or what these compute.
        """
        operators = self._recorder.operators
        needed, stale, found = ancestors_of(operators, [new]), {before}, set[int]()
        for number, op in enumerate(operators):
            if number in self._own or stale.isdisjoint(op.operands):
                continue
            if needed.isdisjoint(op.results):
                return False
            found.add(number)
            stale.update(filter(None, op.results))
        self._own |= found
        self.stale |= dict.fromkeys(stale - {before}, stored)
        return True

    def require_unused(self) -> None:
        """Raises: CaptureError if the step uses a value that it computed from earlier weights"""
        for number, op in enumerate(self._recorder.operators if self.stale else ()):
            if number not in self._own:
                for operand in op.operands:
                    require_current(self.stale, operand, op.line)


def require_current(stale: Mapping[Ref, str], value: Ref, line: str) -> None:
    """Raises: CaptureError for a value that a step has computed from earlier weights"""
    if stored := stale.get(value):
        raise CaptureError(
            f"{line}: a value of {stored} is used after forward has written it: compute it from "
            "the new one"
        )
