"""A recorded step that computes its own updates: those of several optimizers, in any order."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.traced import TracedTensor


class UpdatingStep(RecordedStep):
    """A step with its optimizers. updated: optimizers whose step() was called."""

    def __init__(self, *given: Any) -> None:
        self.updated: set[int] = set()
        self._computed_so_far: dict[Ref, torch.Tensor] = {}
        super().__init__(*given)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Record calls of an optimizer."""
        self.calls.depth += 1  # its calls are not the loop's
        recorder, begin = self._recorder, len(self._recorder.operators)
        recorder.is_in_update = True
        try:
            yield
        finally:
            recorder.is_in_update = False
            recorder.updates.append(slice(begin, len(recorder.operators)))
            self.calls.depth -= 1

    def after_backward(self, call: Callable[[], None]) -> None:
        """Set a function that is called after each backward()."""
        self._recorder.backward.on_pass_end = call

    def take_states(self) -> None:
        """Compute with the states that an optimizer has got in this step."""
        self._recorder.take_states()

    def take_new_states(self) -> None:
        """Register buffers for tensors that the step has put into the optimizers' states."""
        recorder, fresh = self._recorder, self._recorder.fresh
        assert isinstance(recorder.model, ModelGroup), "it has optimizers"
        states = recorder.model.states
        states.resolve(lambda x: fresh.traced(x) if fresh.is_taken(x) else x)
        if name := states.hold_new():
            recorder.take_states()
            recorder.note_varying(f"the step creates {name}")

    def is_of(self, tensor: Any) -> bool:
        """True for a value of this step."""
        return isinstance(tensor, TracedTensor) and tensor.recorder is self._recorder

    def _number_so_far(self, traced: TracedTensor) -> torch.Tensor:
        """Return the numbers of a value that is read in the step; each is computed once."""

        def compute() -> Mapping[Ref, torch.Tensor]:
            so_far, known = self._recorder.so_far(), self._computed_so_far
            return self._numbers.compute(so_far, [traced.value], computed=known)

        return self._before.tensor_of(traced.value, compute)

    def have_returned(self, tensors: Iterable[TracedTensor]) -> None:
        """Make the program return values to the host."""
        self._returned = tuple(x.value for x in tensors)
