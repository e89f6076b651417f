"""Buffers of the model that forward creates, such as a table of positions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.record.model_tensors import ModelTensors, modules_of
from csrun.pytorch.record.recording import LeafSource, RecordedOperator, Recording, ancestors
from csrun.pytorch.record.traced import TracedTensor


@dataclass(frozen=True)
class NewBuffer:
    """A buffer that a module did not have at the beginning of the step."""

    module: torch.nn.Module
    name: str
    traced: TracedTensor

    def set_value(self, value: torch.Tensor | None) -> None:
        """Set the module's attribute to a value."""
        self.module._buffers[self.name] = value

    def error(self, operators: Iterable[RecordedOperator]) -> CaptureError:
        """Return the error for a buffer that is not supported; it is removed from the module."""
        self.set_value(None)
        made = (op.line for op in operators if self.traced.value in op.results)
        return CaptureError(
            f"{next(made, user_line())}: forward creates the buffer {self.name}: create it in "
            "__init__, or run a batch through the model before cbtorch.module"
        )

    def require_constant(self, recording: Recording, *, are_written: bool) -> None:
        """Raises: CaptureError for a buffer computed from the batch or from weights, or if forward
        has written other buffers, which it would write twice

        are_written: some of them are not in the recording.
        """
        sources = LeafSource.INPUT, LeafSource.PARAMETER
        given = {leaf.value for source in sources for leaf in recording.of(source)}
        writes = bool(are_written or recording.written or recording.counters)
        if writes or not given.isdisjoint(ancestors(recording, [self.traced.value])):
            raise self.error(recording.operators)


def new_buffers(model: torch.nn.Module, known: ModelTensors) -> Iterator[NewBuffer]:
    """Yield the traced buffers of a model that are not known."""
    for prefix, module in modules_of(model).items():
        for name, buffer in module._buffers.items():
            if isinstance(buffer, TracedTensor) and known.find_name(prefix, name) is None:
                yield NewBuffer(module, name, buffer)
