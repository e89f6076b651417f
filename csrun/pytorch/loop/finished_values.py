"""Reads of a recorded step's values after the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.readback import view_is_stale
from csrun.pytorch.loop.recorded_checks import ForwardCalls, is_of_forward, norm_in
from csrun.pytorch.loop.recorded_gradients import RecordedGradients, gradients_behind
from csrun.pytorch.loop.recorded_reads import HostComputedValues, ReplayedReads
from csrun.pytorch.record.recording import Recording, Ref
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.run.replay import ValueLostError
from csrun.pytorch.step.variant import StepVariant


@dataclass(frozen=True, eq=False)
class FinishedValues:
    """Values of a finished recorded step, read through its traced tensors.

    Traced tensors refer to this object, and it does not refer to them or to their recorder, so
    everything is freed with the last traced tensor.

    returned: returns the value from the program's outputs, None if it is not among them.
    norm: returns the norm by which all gradients are clipped.
    """

    recording: Recording
    variant: StepVariant
    numbers: HostComputedValues
    gradients: RecordedGradients
    forward: ForwardCalls
    before: ReplayedReads
    returned: Callable[[Ref], torch.Tensor | None]
    norm: Callable[[torch.dtype], torch.Tensor]

    def tensor_of(self, traced: TracedTensor) -> torch.Tensor:
        """Return the numbers of a value. Later steps of the variant return it, too."""
        value, recording = traced.value, self.recording
        if (found := self.returned(value)) is not None:
            return found
        if not is_of_forward(recording, value):
            return self._number_of_gradients(value)
        weight = recording.viewed_parameter(value)
        if weight and self.before.values.updates != self.before.run.updates:
            raise view_is_stale(weight)
        self.forward.require_returned(recording, value)
        self._want(self.variant.shape.bases_of(recording, [value]))
        return self.before.tensor_of(value, lambda: self._computed(value))

    def _number_of_gradients(self, value: Ref) -> torch.Tensor:
        recording = self.recording
        total = norm_in(recording, value)
        if total is not None:
            known = {total: self.norm(recording.kind(total).dtype)}
            return self.numbers.compute(recording, [value], known)[value]
        self._want(gradients_behind(recording, value, self.variant))
        return self.before.tensor_of(
            value, lambda: {value: self.gradients.number(recording, value)}
        )

    def _want(self, values: tuple[Ref, ...]) -> None:
        self.variant.wanted.update(dict.fromkeys(values))

    def _computed(self, value: Ref) -> Mapping[Ref, torch.Tensor]:
        if self.before.run.users.is_in_file and self.before.values.status.has_values:
            raise ValueLostError(
                f"{user_line()}: in the first steps of a model built by cbtorch.meta_init(), "
                "values must be read before the step's loss: move this line up"
            )
        return self.numbers.compute(self.recording, [value])
