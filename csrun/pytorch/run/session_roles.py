"""Role of a task in a Session: the chief runs it, the others serve."""

import atexit
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import torch

from csrun.base.errors import UsageError
from csrun.context import Role, TaskContext, current
from csrun.estimator.input_report import NoReports
from csrun.estimator.roles import next_run_folder, serve, task_role
from csrun.estimator.run import EstimatorRun
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.run.preparing import Prepared, require_no_feeding
from csrun.pytorch.run.run_programs import CONTINUES
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.settings import Settings
from csrun.pytorch.user import SessionLoader
from csrun.pytorch.weights.sync import WeightSync

SCRIPT_IS_OVER = "script is over"  # among the results of a run: the other tasks end with the chief


class SkipBlock(BaseException):
    """Raised at the beginning of a Session's block in a task that does not run it."""


@dataclass(frozen=True, eq=False)
class SessionObjects:
    """Objects that a Session was created with. optimizer: None for an evaluation."""

    settings: Settings
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None

    def has(self, other: "SessionObjects") -> bool:
        """True if another Session belongs to the same run."""
        is_one = self.settings is other.settings and self.model is other.model
        return is_one and (None in (self.optimizer, other.optimizer) or self._trains_as(other))

    def _trains_as(self, other: "SessionObjects") -> bool:
        return self.optimizer is other.optimizer


_runs: list[tuple[SessionObjects, ScriptRun]] = []  # of the chief; the last one has the system
_served: list[Settings] = []  # of any other task: finished runs


def run_of(
    wanted: SessionObjects, optimization: Optimization | None, loaders: Sequence[SessionLoader]
) -> ScriptRun | None:
    """Return the run of a Session in the chief; None in other tasks.

    Sessions of one model after one `initialize` are one run, with one store and one lease. The
    other tasks stay in the first Session's block until `initialize` is called again, or the chief's
    script has ended.

    loaders: the script's loaders so far, in the same order in all tasks.

    Raises: UsageError for a second training in one model_dir; SystemExit in another task, when the
    chief's script has ended
    """
    require_no_feeding()
    context = current()
    role = task_role(context)
    if context is not None and context.mode is not None and role is not Role.CHIEF:
        _take_part(context, wanted.settings, loaders if role is Role.STREAMER else ())
        return None
    found = next((one for one in reversed(_runs) if one[0].has(wanted)), None)
    if found is None:
        _require_another_folder(wanted)  # before the other tasks wait for the next run
    is_same_folder = bool(_runs) and _runs[-1][0].settings is wanted.settings
    if _runs and found is not _runs[-1]:
        _runs[-1][1].suspend({CONTINUES: 1.0} if is_same_folder else {})
    if found is None:
        _end_others(wanted)
        known = _runs[-1][1].loaders if is_same_folder else list(loaders)
        found = wanted, _new_run(context, wanted, optimization, known)
    else:
        _runs.remove(found)
    if found[0].optimizer is None and optimization is not None:
        found[1].train_with(optimization)
        found = wanted, found[1]
    _runs.append(found)
    return found[1]


def active_run() -> ScriptRun | None:
    """Return the run that has the system, if there is one."""
    return _runs[-1][1] if _runs else None


def _new_run(
    context: TaskContext | None,
    wanted: SessionObjects,
    optimization: Optimization | None,
    loaders: list[SessionLoader],
) -> ScriptRun:
    run = EstimatorRun(
        _is_recorded,
        wanted.settings.model_dir,
        wanted.settings.config,
        None,
        context,
        None,
        NoReports(),
        loaders[0].dataset_of_batches,
        _is_recorded,
    )
    users, only = WeightSync(wanted.model, optimization), wanted.settings.only
    if only is not None:
        return Prepared(run, partial(next_run_folder, context), users, loaders, only=only)
    return ScriptRun(run, partial(next_run_folder, context), users, loaders)


def _end_others(wanted: SessionObjects) -> None:
    """End the runs of earlier calls of `initialize`."""
    for one, run in _runs:
        if one.settings is not wanted.settings:
            run.end()
    _runs[:] = [one for one in _runs if one[0].settings is wanted.settings]


def _require_another_folder(wanted: SessionObjects) -> None:
    """Raises: UsageError for a second training in a model_dir, which would replay the first one"""
    known = [one for one, _ in _runs if one.settings is wanted.settings]
    if wanted.optimizer is not None and any(one.optimizer is not None for one in known):
        raise UsageError(
            f"{user_line()}: a second training of the script would resume from the first one's "
            f"checkpoints in {wanted.settings.model_dir}: call cbtorch.initialize(model_dir=...) "
            "with another folder before it, or train both in one Session"
        )


@atexit.register
def end() -> None:
    """End the run and the other tasks, because the chief's script ends."""
    while _runs:
        _, run = _runs.pop()
        run.suspend({SCRIPT_IS_OVER: 1.0})
        run.end()


def _take_part(context: TaskContext, settings: Settings, loaders: Sequence[SessionLoader]) -> None:
    """Serve the runs of an `initialize` until they are over.

    Raises: SystemExit when the chief's script has ended
    """
    if any(settings is one for one in _served):
        return
    results = {CONTINUES: 1.0}
    while CONTINUES in results:
        results = _serve(context, loaders)
    _served[:] = [settings]
    if SCRIPT_IS_OVER in results or settings.only is not None:
        raise SystemExit(0)


def _serve(context: TaskContext, loaders: Sequence[SessionLoader]) -> dict[str, float]:
    datasets = [loader.dataset_of_batches for loader in loaders]

    def receive_order(number: int, data_order: bytes) -> None:
        loaders[number].decode(data_order)

    folder = next_run_folder(context)
    assert folder is not None, "in a job"
    return serve(context, folder, datasets, receive_order)


def leave_block(frame: FrameType) -> None:
    """Make the with statement that a frame is entering skip its block.

    Its first line raises `SkipBlock`, which `__exit__` must suppress.
    Source: the Python documentation, sys.settrace: a frame's own trace function
    """
    before, of_frame = sys.gettrace(), frame.f_trace

    def leave(traced: FrameType, event: str, argument: Any) -> NoReturn:
        sys.settrace(before)
        frame.f_trace = of_frame
        raise SkipBlock

    sys.settrace(lambda *_: None)
    frame.f_trace = leave


def _is_recorded(*_: Any) -> NoReturn:
    raise AssertionError("the model of a PyTorch script is recorded, not called")
