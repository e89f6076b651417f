"""Parameters that forward writes before it uses them, as in data-dependent initialization.

The host computes their new values in mid-step, and the step then starts from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.record.recording import LeafSource, RecordedOperator
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
    """Writes of one recording. written: parameters whose values differ from the run's store."""

    def __init__(self, recorder: _WritingRecorder) -> None:
        self._recorder = recorder
        self.written: dict[str, torch.nn.Parameter] = {}
        self._own: set[int] = set()  # operators that compute the values: nothing else needs them

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
        if own.geometry != target.geometry or is_meta(parameter) or self._is_used(own):
            return False
        recorder.note_varying(f"forward writes {stored}")
        self._own.add(len(recorder.operators))
        numbers = recorder.reader(compute())
        with unrecorded(), torch.no_grad():
            parameter.copy_(numbers)
        self.written[name] = parameter
        return True

    def _is_used(self, parameter: TracedTensor) -> bool:
        operators = enumerate(self._recorder.operators)
        return any(
            parameter.value in op.operands for number, op in operators if number not in self._own
        )
