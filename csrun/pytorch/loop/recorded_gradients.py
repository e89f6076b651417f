"""Numbers of gradients in steps that are recorded, and of those that programs return."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from csrun.pytorch.gradients.values import OF_A_SUM, StepGradients, refused
from csrun.pytorch.lower.clipping import clipped_norm_of
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors
from csrun.pytorch.step.step_outputs import Reader, Slot, StepOutputs
from csrun.pytorch.step.variant import StepVariant

Compute = Callable[[Recording, Sequence[Ref], Mapping[Ref, torch.Tensor]], Mapping[Ref, Any]]


@dataclass(eq=False)
class ReturnedGradients:
    """Gradients of one step as `backward()` has left them, which its program returns."""

    readback: Reader
    variant: StepVariant
    outputs: StepOutputs

    def __call__(self, name: str) -> torch.Tensor:
        """Return a parameter's gradient.

        A first read has the program return all of them, since the step runs before the next read.
        """
        recording = self.variant.recording
        value = recording.first_gradients[name]
        if (constant := _constants(recording).get(value)) is not None:
            return constant
        if not self.outputs.status.has_values:
            all_of_them = returnable(recording)
            known = [ref for ref in all_of_them if ref in self.variant.outputs]
            self.outputs.asked.update(dict.fromkeys(known if value in known else all_of_them))
        return self.readback.read(self.outputs, slot_of(recording, value))

    def all_known(self, names: Sequence[str]) -> bool:
        """True if the step's program returns or has returned these."""
        done, outputs = self.outputs.status.has_values, self.outputs.outputs
        first = self.variant.recording.first_gradients
        refs = [first[name] for name in names if name in first]
        known = outputs.keys() if done else self.variant.outputs
        return len(refs) == len(names) and all(ref in known for ref in refs)


def slot_of(recording: Recording, value: Ref) -> Slot:
    """Return the slot of a gradient."""
    kind = recording.kind(value)
    meta = torch.empty(kind.shape, dtype=kind.dtype, device="meta")
    return Slot(value, meta, is_gradient=True)


def _constants(recording: Recording) -> Mapping[Ref, torch.Tensor]:
    return {leaf.value: leaf.tensor for leaf in recording.of(LeafSource.CONSTANT)}


def returnable(recording: Recording) -> list[Ref]:
    """Return the gradients that a program can return: all that are no constants."""
    constants = _constants(recording)
    return [ref for ref in recording.first_gradients.values() if ref not in constants]


def parameters_of(recording: Recording, value: Ref) -> list[str]:
    """Return the parameters from whose gradients a value is computed, besides their norm."""
    first, norm = recording.first_gradients, clipped_norm_of(recording)
    known = {*first.values(), *(() if norm is None else (norm,))}
    found = ancestors(recording, [value], known)
    constants = _constants(recording)
    return [name for name, ref in first.items() if ref in found and ref not in constants]


@dataclass(eq=False)
class RecordedGradients:
    """Numbers of the gradients of a recorded step.

    They are computed by PyTorch, unless the step's program returns them. compute: computes values
    of a recording, with numbers that are known. place: returns how many batches of the step came
    before. returned: by the program, once the step is over.
    """

    compute: Compute
    place: Callable[[], int]
    returned: ReturnedGradients | None = None
    _first: Mapping[Ref, torch.Tensor] = field(default_factory=dict)

    def number(self, recording: Recording, value: Ref) -> torch.Tensor:
        """Return the numbers of a value.

        Raises: GradientReadError where gradients are added to those of other batches
        """
        if self.place():
            raise refused(OF_A_SUM)
        known = self._known(recording, value)
        return self.compute(recording, [value], known)[value].clone()

    def of_parameter(self, recording: Recording, name: str) -> torch.Tensor:
        """Return a parameter's gradient after all edits of the step."""
        if name not in recording.gradients:
            raise refused(f"and the loop has set that of {name} to None")
        return self.number(recording, recording.gradients[name])

    def _known(self, recording: Recording, value: Ref) -> Mapping[Ref, torch.Tensor]:
        first = recording.first_gradients
        if self.returned is not None and not self._first:
            names = parameters_of(recording, value)
            if names and self.returned.all_known(names):
                return {first[name]: self.returned(name) for name in names}
        if not self._first:
            self._first = dict(self.compute(recording, list(first.values()), {}))
        return self._first


def gradients_after(
    of_parameter: Callable[[str], torch.Tensor], number_of: Callable[[Slot], torch.Tensor]
) -> StepGradients:
    """Return the gradients of a recorded step that is over, which no edits follow."""
    return StepGradients(of_parameter, tuple, lambda: None, number_of)
