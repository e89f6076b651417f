"""Calls of the model on the loop's own tensors, computed by PyTorch on the host.

Examples are an estimate of the loss on random batches, a text sample, a prediction. They use the
weights after the last step.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.weights.sync import require_memory

log = logging.getLogger("csrun")


class HostCalls:
    """The model on the host between steps; forward: the model's own."""

    def __init__(self, run: ScriptRun, model: torch.nn.Module, forward: Callable[..., Any]) -> None:
        self._run, self._model, self._forward = run, model, forward
        self._weights_of = -1  # number of updates of the model's current weights
        self._lines: set[str] = set()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_in_step: bool) -> Any:
        """Call the model with the current weights; the next step starts from buffers it writes.

        Raises: UsageError for a model without memory, in steps that an earlier run has computed,
        and if forward writes a buffer within a step, as a batch norm does in training
        """
        require_memory(self._model)
        run, line = self._run, user_line()
        run.replay.require_over()
        if line not in self._lines:
            self._lines.add(line)
            log.info(
                f"{line}: the model is called on the loop's own tensors: PyTorch computes this on "
                "the host, not the wafer"
            )
        run.flush()
        if self._model.training and not is_in_step:  # it may write buffers
            run.copy_back()
            run.users.keep_weights()
        with ExitStack() as opened:
            opened.enter_context(unrecorded())
            opened.enter_context(torch._C.DisableTorchFunction())
            opened.enter_context(torch.no_grad())
            opened.enter_context(on_one_thread())  # the same bits for any number of CPUs
            if self._weights_of != run.updates:
                run.read_weights()
                self._weights_of = run.updates
            written = [(name, x, x._version) for name, x in self._model.named_buffers()]
            found = call_for_user(self._forward, args, kwargs)
        changed = next((name for name, x, version in written if x._version != version), None)
        if changed and not (self._model.training and not is_in_step):
            raise UsageError(
                f"{line}: the model is called on the loop's own tensors within a step, and writes "
                f"its buffer {changed}: call it after optimizer.step(), or model.eval() before it"
            )
        run.are_written |= changed is not None
        return found
