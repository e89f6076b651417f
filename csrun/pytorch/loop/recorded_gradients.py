"""Values of gradients in recorded steps, and of gradients that programs return."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch

from csrun.pytorch.gradients.values import OF_A_SUM, StepGradients, refused
from csrun.pytorch.lower.clipping import clipped_norm_of
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors
from csrun.pytorch.step.step_outputs import Reader, Slot, StepOutputs
from csrun.pytorch.step.variant import StepVariant

Compute = Callable[[Recording, Sequence[Ref], Mapping[Ref, torch.Tensor]], Mapping[Ref, Any]]


class ReturnedGradients:
    """Gradients of one step as left by `backward()`, which its program returns.

    The step refers to its gradients; they do not keep it alive.
    """

    def __init__(self, readback: Reader, variant: StepVariant, outputs: StepOutputs) -> None:
        self._readback, self.variant = readback, variant
        self._step: ReferenceType[StepOutputs] = ref(outputs)

    @property
    def _outputs(self) -> StepOutputs:
        outputs = self._step()
        assert outputs is not None, "the step is alive while its gradients are read"
        return outputs

    def __call__(self, name: str) -> torch.Tensor:
        """Return a parameter's gradient.

        After a first read the program returns all of them, since the step runs before the next
        read.
        """
        recording = self.variant.recording
        value = recording.first_gradients[name]
        if (constant := _constants(recording).get(value)) is not None:
            return constant
        outputs = self._outputs
        if not outputs.status.has_values:
            all_of_them = returnable(recording)
            known = [each for each in all_of_them if each in self.variant.outputs]
            outputs.request(known if value in known else all_of_them)
        return self._readback.read(outputs, slot_of(recording, value))

    def all_known(self, names: Sequence[str]) -> bool:
        """True if the step's program returns, or has returned, these."""
        done, outputs = self._outputs.status.has_values, self._outputs.outputs
        first = self.variant.recording.first_gradients
        wanted = [first[name] for name in names if name in first]
        known = outputs.keys() if done else self.variant.outputs
        return len(wanted) == len(names) and all(each in known for each in wanted)


def slot_of(recording: Recording, value: Ref) -> Slot:
    """Return the slot of a gradient."""
    kind = recording.kind(value)
    meta = torch.empty(kind.shape, dtype=kind.dtype, device="meta")
    return Slot(value, meta, is_gradient=True)


def _constants(recording: Recording) -> Mapping[Ref, torch.Tensor]:
    return {leaf.value: leaf.tensor for leaf in recording.of(LeafSource.CONSTANT)}


def returnable(recording: Recording) -> list[Ref]:
    """Return the gradients that a program can return: all that are not constants."""
    constants = _constants(recording)
    return [each for each in recording.first_gradients.values() if each not in constants]


def parameters_of(recording: Recording, value: Ref) -> list[str]:
    """Return the parameters whose gradients a value is computed from, besides their norm."""
    first, norm = recording.first_gradients, clipped_norm_of(recording)
    known = {*first.values(), *(() if norm is None else (norm,))}
    found = ancestors(recording, [value], known)
    constants = _constants(recording)
    return [name for name, of in first.items() if of in found and of not in constants]


def gradients_behind(recording: Recording, value: Ref, variant: StepVariant) -> tuple[Ref, ...]:
    """Return the gradients that a variant must return for a value of an equal recording."""
    first = variant.recording.first_gradients
    return tuple(first[name] for name in parameters_of(recording, value) if name in first)


@dataclass(eq=False)
class RecordedGradients:
    """Values of the gradients of a recorded step.

    PyTorch computes them, unless the step's program returns them.

    compute: computes values of a recording, given known ones.
    place: returns the number of batches of the step before this one.
    returned: by the program, after the step.
    """

    compute: Compute
    place: Callable[[], int]
    returned: ReturnedGradients | None = None
    _first: Mapping[Ref, torch.Tensor] = field(default_factory=dict)

    def number(self, recording: Recording, value: Ref) -> torch.Tensor:
        """Return the numbers of a value.

        Raises: GradientReadError if gradients are accumulated over batches
        """
        if self.place():
            raise refused(OF_A_SUM)
        known = self._known(recording, value)
        return self.compute(recording, [value], known)[value].clone()

    def of_parameter(self, recording: Recording, name: str) -> torch.Tensor:
        """Return a parameter's gradient after all edits of the step, once it is recorded."""
        if name not in recording.gradients:
            raise refused(f"and the loop has set that of {name} to None")
        value = recording.gradients[name]
        if self.returned is not None:
            variant = self.returned.variant
            variant.wanted.update(dict.fromkeys(gradients_behind(recording, value, variant)))
        return self.number(recording, value)

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
    of_parameter: Callable[[str], torch.Tensor], readback: Reader, outputs: StepOutputs
) -> StepGradients:
    """Return the gradients of a finished recorded step without later edits."""
    return StepGradients(ref(outputs), of_parameter, tuple, lambda step: None, readback.read)
