"""Steps on tensors that the script creates itself, without a loader."""

import logging
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.mismatch import is_of_loader
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.variant import Batches
from csrun.pytorch.user import ScriptBatches

log = logging.getLogger("csrun")


class ScriptSteps:
    """Steps of one loop that each begin with a call of the model."""

    def __init__(self, run: ScriptRun) -> None:
        self._run, self._count = run, 0

    def begins(self, step: LoopStep | None, leaves: list[Any]) -> bool:
        """True if a call of the model begins a step. leaves: its arguments, flat.

        There is no open step, or it ends without `optimizer.step()`. The arguments may contain
        values of earlier steps, but no batch of a loader, except the last one of a finished pass.
        """
        if step is None:
            return True
        is_left = step.status.is_over or (step.status.has_gradients and step.batches.is_pushed)
        return is_left and not any(map(is_of_loader, leaves))

    def begin(self, leaves: list[Any]) -> tuple[Batches, int, int]:
        """Return the batches of the step that begins, its number and its samples.

        Raises: UsageError in a backward pass, whose loss the step would lack
        """
        batches, number = self._run.script_batches, self._count
        loader = batches.loader
        assert isinstance(loader, ScriptBatches), "no other one makes them"
        if torch._C._current_autograd_node() is not None:
            raise UsageError(
                f"{user_line()}: the model is first called in a backward pass, and before it under "
                "torch.no_grad() only, as odeint_adjoint does: give the DataLoader to "
                "cbtorch.dataloader, whose batches begin the steps"
            )
        sizes = (leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
        loader.rows = max(next(sizes, 1), 1)
        if not number:
            log.info(
                f"{user_line()}: the model is called on tensors that no cbtorch.dataloader gives, "
                "so their batches are made in this process: give a DataLoader to "
                "cbtorch.dataloader to have streamers make its batches"
            )
        self._count += 1
        return batches, number, loader.rows
