"""Recorded updates of a step computed by PyTorch, from the program's gradients and state.

With its own gradients PyTorch would have different weights where an optimizer divides by rounding
noise, as Adam does for a gradient near zero. An update is therefore compared separately.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from csrun.advice.operator_comparison.step_values import StepValues
from csrun.advice.operator_comparison.value_difference import AnyArray
from csrun.executable.update_recorder import (
    AFTER,
    BEFORE,
    CLIP,
    GRADIENTS,
    NUMBERS,
    SKIPPED,
    WEIGHTS,
)
from csrun.pytorch.lower.clipping import clipping_of
from csrun.pytorch.lower.interpret import interpret
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.optimization import Form
from csrun.pytorch.optimizers.plain_step import ParameterState, plain_step
from csrun.pytorch.record.recording import Recording
from csrun.records.torch_names import stored_name


@dataclass(frozen=True)
class TorchUpdates:
    """PyTorch's weights and optimizer state after a recorded step.

    form: of the program's updates. found: the program's values.
    """

    recording: Recording
    optimization: Optimization
    form: Form
    found: StepValues
    step: int

    def values(self) -> Iterator[tuple[int, AnyArray]]:
        """Weights and state of each trained parameter by their numbers in the plan."""
        numbers = self._read(NUMBERS)
        if numbers is None:
            return
        slots = [slot.name for slot in self.found.plan.store.slots]
        counts = {name: count for name, _, count in self.form}
        for name, gradient in self._gradients().items():
            state = {slot: x for slot in slots if (x := self._of(slot, name)) is not None}
            weights = self._of(WEIGHTS, name)
            assert weights is not None, "its gradient is recorded, too"
            given, count = numbers.tolist(), counts[name]
            earlier = self._earlier if count is None else int(given[count])
            before = ParameterState(weights, gradient, state, earlier)
            after = plain_step(self.optimization, name, before, given)
            for region, value in after.items():
                key = f"{AFTER}{region}/{stored_name(name)}"
                if key in self.found.numbers:
                    stored = value.T if stored_name(name) in self._transposed else value
                    yield self.found.numbers[key], stored.contiguous().numpy()

    @property
    def _earlier(self) -> int:
        """Number of earlier steps that loss scaling has not skipped."""
        skipped = self._read(SKIPPED)
        return self.step - 1 - (0 if skipped is None else int(skipped))

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Gradients of the update by parameter, clipped by PyTorch if the script clips them."""
        found = {name: self._of(GRADIENTS, name) for name in self.recording.gradients}
        given = {name: gradient for name, gradient in found.items() if gradient is not None}
        clipping = clipping_of(self.recording, list(given))
        if clipping is None or self.found.plan.loss_scaling is not None:
            factor = self._read(CLIP)
            most = None if clipping is None else clipping.limits.clip_value
            scaled = given if factor is None else {n: x * factor for n, x in given.items()}
            return scaled if most is None else {n: x.clamp(-most, most) for n, x in scaled.items()}
        known = {clipping.gradients[name]: gradient for name, gradient in given.items()}
        wanted = {name: self.recording.gradients[name] for name in given}
        clipped = interpret(self.recording, wanted.values(), known=known)
        return {name: clipped[ref] for name, ref in wanted.items()}

    @property
    def _transposed(self) -> set[str]:
        """Names of parameters that the store has transposed."""
        return {p.name for p in self.found.plan.parameters if p.is_transposed}

    def _of(self, region: str, name: str) -> torch.Tensor | None:
        """Return a value before the update in PyTorch's layout; None if it is not recorded."""
        value = self._read(f"{BEFORE}{region}/{stored_name(name)}")
        return value.T if value is not None and stored_name(name) in self._transposed else value

    def _read(self, key: str) -> torch.Tensor | None:
        if key not in self.found.numbers or (value := self.found.value(key)) is None:
            return None
        return torch.from_numpy(value.numbers.copy())
