"""The Session: a context in which a training loop runs on the wafer."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.amp.autocast import autocast_as_precision
from csrun.pytorch.amp.torch_scalers import redirect_torch_scalers
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.group_patches import GroupPatches
from csrun.pytorch.loop.patches import Patches
from csrun.pytorch.loop.pruning import pruning_refused
from csrun.pytorch.loop.session_loop import SessionLoop
from csrun.pytorch.loop.updating_loop import UpdatingLoop
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.optimization import rule_of
from csrun.pytorch.optimizers.trained_groups import group_of
from csrun.pytorch.record.backward import backward_as_method
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.reuse.autograd_graph import forget_unreachable_hooks
from csrun.pytorch.record.torch_modes import compiled_as_eager, inference_as_no_grad
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.run.session_roles import SessionObjects, SkipBlock, leave_block, run_of
from csrun.pytorch.session_check import session_check
from csrun.pytorch.settings import settings
from csrun.pytorch.user import (
    ScriptBatches,
    SessionLoader,
    active,
    loaders,
    only_module,
    only_optimizer,
    require_module,
)


class Session:
    """A block in which a loop runs on the wafer.

            with cbtorch.Session(model, optimizer, criterion, mode="train") as session:
                for batch in train_dataloader:
                    ...                      # zero_grad, forward, loss, backward, optimizer.step

    The first steps are recorded; forward's Python does not run in the others, of which many are run
    at a time. A read by the loop (`.item()`, `float(loss)`, an f-string) waits for the steps so
    far. A loop over another loader without `optimizer.step()` is an evaluation, with the current
    weights. After the block, model and optimizer have the trained values.

    Session(dataloader, mode) is the same, for the only model given to `module`, and the optimizer
    over its parameters.

    Raises: UsageError, with the user's line, for a loop that cannot be run in this way
    """

    def __init__(
        self,
        model: torch.nn.Module | SessionLoader | Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | str | None = None,
        criterion: Callable[..., Any] | None = None,
        mode: str = "train",
    ) -> None:
        self.line = user_line()
        self._settings = settings("Session")
        if isinstance(model, SessionLoader):
            mode = optimizer if isinstance(optimizer, str) else mode
            model = only_module(self.line)
            optimizer = only_optimizer(model, self.line) if mode == "train" else None
        if mode not in ("train", "eval"):
            raise UsageError(f'{self.line}: Session: mode must be "train" or "eval", got {mode!r}')
        self._model: torch.nn.Module
        self._optimization: Optimization | None = None
        optimizer = _unwrapped(optimizer) if mode == "train" else optimizer
        if isinstance(model, list | tuple) or (mode == "train" and _is_recorded(optimizer)):
            model = model if isinstance(model, list | tuple) else [model]
            group = group_of(model, optimizer, mode, self.line)
            self._model, self._optimization = group, group.updates
        else:
            self._model = require_module(model, self.line)
            if mode == "train":
                self._optimization = self._found_optimization(optimizer)
        self._run: ScriptRun | None = None
        self._loop: SessionLoop | None = None
        self._open = ExitStack()

    def _found_optimization(self, optimizer: Any) -> Optimization:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(
                f"{self.line}: Session: a training needs an optimizer of torch.optim, "
                f"got {type(optimizer).__name__}"
            )
        return Optimization(optimizer, self._model)

    def __enter__(self) -> Self:
        if active:
            raise UsageError(
                f"{user_line()}: a Session is open already, since {active[-1].line}: leave that "
                "block first, or give models that train each other, as in a GAN, to one: "
                "Session([G, D], [g_optimizer, d_optimizer])"
            )
        if not loaders:  # the same in all tasks, whose streamers are idle then
            loaders.append(ScriptBatches())
        session_check.opened()
        optimization = self._optimization
        wanted = SessionObjects(
            self._settings, self._model, optimization and optimization.optimizer
        )
        run = run_of(wanted, optimization, loaders)
        if run is None:
            leave_block(sys._getframe(1))
            return self
        optimization = optimization and run.users.optimization
        forget_unreachable_hooks()
        with ExitStack() as opened:
            run.enter()
            opened.callback(run.leave_block)
            opened.enter_context(inference_as_no_grad())
            opened.enter_context(compiled_as_eager())
            opened.enter_context(backward_as_method())
            loop = self._opened_loop(run, optimization, opened)
            opened.enter_context(autocast_as_precision(loop.scaled_loss.half))
            opened.enter_context(redirect_torch_scalers())
            opened.enter_context(pruning_refused(self._model, lambda: loop.has_begun))
            opened.enter_context(loop.watch)
            opened.callback(loop.forget_gradients)
            self._loop, self._run = loop, run
            active.append(self)
            opened.callback(active.remove, self)
            self._open = opened.pop_all()
        return self

    def _opened_loop(
        self, run: ScriptRun, optimization: Optimization | None, opened: ExitStack
    ) -> SessionLoop:
        """Return the loop of the block, with the user's objects patched."""
        model = self._model
        cause = "" if self._settings.fast else "cbtorch.initialize(fast=False)"
        if isinstance(model, ModelGroup):
            model.take_forward()
            updating = UpdatingLoop(run, self.line, model, optimization, model.forward, cause)
            opened.enter_context(GroupPatches(updating, model))
            return updating
        loop = SessionLoop(run, self.line, model, optimization, model.forward, cause)
        opened.enter_context(Patches(loop, model, optimization))
        return loop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if kind is SkipBlock:
            return True
        loop, run = self._in_block, self._run
        assert run is not None, "in the block"
        with self._open:
            said = None if error is None else loop.stop(error)
            try:
                if error is None:
                    loop.end()
                if error is None or isinstance(error, SystemExit):
                    run.finish_block()
            except BaseException as another:
                run.fail(another)
                raise
            if error is not None and not isinstance(error, SystemExit):
                run.fail(said or error)
            if said is not None:
                raise said from error
        return False

    @property
    def is_replayed(self) -> bool:
        """True if the loop is in steps that an earlier run has computed, whose weights are lost."""
        return self._in_block.user.is_replayed

    @property
    def _in_block(self) -> SessionLoop:
        assert self._loop is not None, "in the block"
        return self._loop

    def batches(self, loader: SessionLoader) -> Generator[Any]:
        """Yield the batches of one pass over a loader."""
        return self._in_block.batches(loader)

    def summarize(self, name: str, value: Any) -> None:
        """Write a number of this step into the run's events."""
        self._in_block.summarize(name, value)

    def scale_loss(self, scaler: Any) -> None:
        """Scale the loss whose `backward()` comes next, by a GradScaler."""
        self._in_block.scaled_loss.scale(scaler)


def _is_recorded(optimizer: Any) -> bool:
    """True for optimizers without a rule: PyTorch's own code is recorded."""
    is_one = isinstance(optimizer, torch.optim.Optimizer)
    return isinstance(optimizer, list | tuple) or (is_one and rule_of(optimizer) is None)


def _unwrapped(optimizer: Any) -> Any:
    """Return the optimizer in a wrapper that calls its `step`, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer
