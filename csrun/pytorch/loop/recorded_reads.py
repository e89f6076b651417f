"""Values of a recorded step that are read: computed once, and logged for a resumed script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.lower.interpret import LazyTensor, interpret
from csrun.pytorch.record.recording import Recording, Ref
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.step_outputs import StepOutputs
from csrun.pytorch.weights.sync import StepWeights


@dataclass(frozen=True)
class ReplayedReads:
    """Values of one step that an earlier run has read, or that this one has computed."""

    run: ScriptRun
    values: StepOutputs

    def tensor_of(
        self, ref: Ref, compute: Callable[[], Mapping[Ref, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the numbers of a value, logged ones or those that `compute` returns.

        Computed on one thread, since sums must not depend on the number of CPUs of a task.
        """
        found = self.run.replay.value(self.values, ref)
        if found is None:
            with on_one_thread():
                found = compute()[ref]
            with unrecorded():
                self.run.replay.keep(self.values, ref, found)
        return found


class HostComputedValues:
    """Values that PyTorch computes on the host, with the weights that the step has.

    It is referred to by values and gradients, and does not refer to them, so the weights that it
    keeps are freed with the last of these. draw: seed of dropout masks.
    """

    def __init__(self, run: ScriptRun, draw: MaskKey) -> None:
        self._run, self.draw = run, draw
        self._kept: StepWeights | None = None

    def keep_weights(self, recording: Recording) -> None:
        """Keep the weights of a finished step, before the model gets others."""
        self._kept = StepWeights(recording)
        self._run.users.before.add(self._kept)

    def compute(
        self,
        recording: Recording,
        values: Sequence[Ref],
        known: Mapping[Ref, torch.Tensor] | None = None,
        computed: LazyTensor | None = None,
    ) -> LazyTensor:
        """Compute the numbers of values. known, computed: as in `interpret`."""
        kept = {} if self._kept is None else self._kept.weights
        weights = kept or self._run.weights_of_store()
        with unrecorded(), on_one_thread():
            return interpret(recording, values, weights, self.draw, known, computed)
