"""Values of a recorded step that are read: computed once, and kept for a resumed script."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.record.recording import Ref
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.step_outputs import StepOutputs


@dataclass(frozen=True)
class ReadBefore:
    """Values of one step that an earlier run has read, or that this one has computed."""

    run: ScriptRun
    values: StepOutputs

    def number_of(
        self, ref: Ref, compute: Callable[[], Mapping[Ref, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the numbers of a value, kept ones or those that `compute` returns.

        Computed on one thread: sums must not depend on how many CPUs a task has.
        """
        found = self.run.replay.value(self.values, ref)
        if found is None:
            with on_one_thread():
                found = compute()[ref]
            with unrecorded():
                self.run.replay.keep(self.values, ref, found)
        return found
