"""Integer and boolean buffers of the model in a recorded step; they are not part of the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from csrun.pytorch.errors import CaptureError, call_for_user, user_line
from csrun.pytorch.record.arguments import map_arguments, written_by
from csrun.pytorch.record.model_tensors import ModelTensors
from csrun.pytorch.record.plain_tensors import PlainTensors
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

_ADD = torch.ops.aten.add_.Tensor


class _CountingRecorder(Protocol):
    """The recorder, as used here."""

    may_read_in_forward: bool
    plain: PlainTensors

    def counter_name(self, tensor: torch.Tensor) -> str | None: ...

    def name_of(self, tensor: torch.Tensor) -> str | None: ...

    def is_recorded(self, tensor: torch.Tensor) -> bool: ...

    def traced(self, tensor: torch.Tensor) -> TracedTensor: ...

    def read(self, traced: TracedTensor) -> torch.Tensor: ...

    def note_varying(self, what: str) -> None: ...


class HostBuffers:
    """Buffers that forward increments, such as batch norm's counter, sets or branches on.

    increments: per step, by name, of buffers that nothing in the step reads; steps that are not
        recorded have the same.
    live: names of those that forward reads or sets; their values are computed at once, and each
        step is recorded.
    writes: number of writes of buffers that are also values of the step.
    """

    def __init__(self, recorder: _CountingRecorder) -> None:
        self._recorder = recorder
        self.increments: dict[str, int] = defaultdict(int)
        self.live: set[str] = set()
        self.writes = 0

    def write(
        self, func: Any, given: Sequence[torch.Tensor], args: Any, kwargs: Mapping[str, Any]
    ) -> bool:
        """Execute a write to such a buffer; False for other operators.

        Values of the step are computed on the host.
        """
        recorder = self._recorder
        name = recorder.counter_name(given[0])
        if name is None or not func._schema.is_mutable:
            return False
        if any(x is not given[0] for x in written_by(func, args, kwargs)):
            return False
        if recorder.plain.leaf_of(given[0]) is not None:  # whose views see the write
            return False
        is_count = func is _ADD and len(given) == 1 and not kwargs
        if is_count and name not in self.live:
            self.increments[name] += int(args[1])
            return True
        if not recorder.may_read_in_forward:
            return False
        recorder.note_varying(f"forward writes {name}")
        args, kwargs = map_arguments(self._numbers_of, args, kwargs)
        call_for_user(func, args, kwargs)
        return True

    def write_also(self, func: Any, target: TracedTensor, args: Any, kwargs: Any) -> None:
        """Execute a write to the traced form of such a buffer, or to a view of it, on the buffer,
        too.
        """
        recorder = self._recorder
        with unrecorded():
            buffer = recorder.plain.tensor_in(target.memory)
        recorder.note_varying(f"forward writes {recorder.counter_name(buffer)}")
        self._bring_up_to_date(buffer)
        self.writes += 1

        def number_of(given: Any) -> Any:
            return _same_view(buffer, target) if given is target else self._numbers_of(given)

        args, kwargs = map_arguments(number_of, args, kwargs)
        with unrecorded(), torch.no_grad():
            call_for_user(func, args, kwargs)
        recorder.plain.note_write(buffer)

    def is_counter_read(self, statistics: torch.Tensor | None) -> bool:
        """True if the step reads the batch counter of a norm's statistics."""
        name = None if statistics is None else self._recorder.name_of(statistics)
        owner = "" if name is None else name.rpartition(".")[0]
        return f"{owner}.num_batches_tracked".lstrip(".") in self.live

    def take_replaced(self, tensors: ModelTensors) -> None:
        """Copy the numbers of tensors that have replaced such buffers into these."""
        if not self._recorder.may_read_in_forward:
            return
        for entry, now in tensors.restore_counters():
            self._recorder.note_varying(f"forward writes {entry.name}")
            self._bring_up_to_date(entry.tensor)
            entry.tensor.copy_(self._numbers_of(now))

    def _numbers_of(self, given: Any) -> Any:
        """Return an operand with its numbers."""
        recorder = self._recorder
        if not isinstance(given, torch.Tensor) or not recorder.is_recorded(given):
            return given
        if recorder.counter_name(given) is None:
            return recorder.read(recorder.traced(given))
        self._bring_up_to_date(given)
        return given

    def is_readable(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is such a buffer, and its number can be read during the step."""
        recorder = self._recorder
        name = recorder.counter_name(tensor)
        if name is None or not recorder.may_read_in_forward:
            return False
        recorder.note_varying(f"forward reads {name}")
        self._bring_up_to_date(tensor)
        return True

    def read(self, given: Sequence[torch.Tensor]) -> None:
        """Update the operands of an operator, if the step counts them.

        Raises: CaptureError in a step that is only compared with step 1
        """
        for tensor in given if self.increments else ():
            if (name := self._recorder.counter_name(tensor)) in self.increments:
                if not self._recorder.may_read_in_forward:
                    raise CaptureError(
                        f"{user_line()}: forward reads the integer buffer {name}, which it counts "
                        "up, and did not in step 1: read it in each step"
                    )
                self._recorder.note_varying(f"forward reads {name}")
                self._bring_up_to_date(tensor)

    def _bring_up_to_date(self, tensor: torch.Tensor) -> None:
        name = self._recorder.counter_name(tensor)
        if name is None or name in self.live:
            return
        self.live.add(name)
        if by := self.increments.pop(name, 0):
            call_for_user(_ADD, (tensor, by), {})


def _same_view(base: torch.Tensor, view: TracedTensor) -> torch.Tensor:
    """Return the view of a tensor that a traced one is of its own base."""
    of = view.view_of
    if of is None:
        return base
    with unrecorded(), torch.no_grad():
        found = of.call(_same_view(base, of.base), *of.arguments, **of.keywords)
    part: torch.Tensor = found[of.result] if isinstance(found, tuple | list) else found
    return part
