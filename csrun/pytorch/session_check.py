"""Check that a script that wraps a model or a DataLoader opens a Session.

Without a Session the loop is plain PyTorch: every task of a job would train the whole model.
"""

import atexit
import logging
import sys
from enum import Enum, auto
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from csrun.base.errors import UsageError
from csrun.context import current
from csrun.context.script_end import at_script_end
from csrun.pytorch.errors import user_line

log = logging.getLogger("csrun")
_MISSING = (
    "no Session was opened: nothing ran on the system; train in a `with cbtorch.Session(...)` block"
)


class _CheckState(Enum):
    IDLE = auto()  # nothing is wrapped
    EXPECTED = auto()
    WARNED = auto()  # outside a job
    OPENED = auto()


class SessionCheck:
    """State machine from wrapped objects to their Session."""

    def __init__(self) -> None:
        self._state = _CheckState.IDLE
        self._models: WeakSet[torch.nn.Module] = WeakSet()
        self._hook: Any = None

    def expect(self, model: torch.nn.Module | None = None) -> None:
        """Expect a Session, because the script wraps a model or a DataLoader."""
        if model is not None:
            self._models.add(model)
        if self._state is not _CheckState.IDLE:
            return
        self._state = _CheckState.EXPECTED
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        if _is_in_job():
            at_script_end(self._at_end)
        atexit.register(self._at_exit)

    def opened(self) -> None:
        """Note that a Session is opened; plain PyTorch is accepted afterwards."""
        self._state = _CheckState.OPENED
        self._remove_hook()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._updates_model(optimizer):
            self._report(f"{user_line()}: ")

    def _updates_model(self, optimizer: torch.optim.Optimizer) -> bool:
        wrapped = {id(p) for model in self._models for p in model.parameters()}
        return any(id(p) in wrapped for group in optimizer.param_groups for p in group["params"])

    def _at_end(self) -> None:
        if self._state is _CheckState.EXPECTED:
            self._report("")

    def _at_exit(self) -> None:
        """Warn at a normal exit outside a job, where the script's end is not checked."""
        if self._state is _CheckState.EXPECTED and getattr(sys, "last_value", None) is None:
            log.warning(_MISSING)

    def _report(self, where: str) -> None:
        self._state = _CheckState.WARNED
        self._remove_hook()
        if _is_in_job():
            raise UsageError(f"{where}{_MISSING}")
        log.warning("%s%s", where, _MISSING)

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _is_in_job() -> bool:
    context = current()
    return context is not None and context.mode is not None


session_check = SessionCheck()
