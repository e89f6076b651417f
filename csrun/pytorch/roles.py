"""What a task does at a Session: the chief leads it, the others serve until it is over."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import torch

from csrun.base.errors import UsageError
from csrun.context import Role, TaskContext, current
from csrun.estimator.input_report import NoReports
from csrun.estimator.roles import next_run, role_in_training, serve
from csrun.estimator.run import Run
from csrun.pytorch.capture import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.preparing import Prepared, require_no_feeding
from csrun.pytorch.script_run import ScriptRun
from csrun.pytorch.settings import Settings
from csrun.pytorch.user import Loader


class BlockIsLeft(BaseException):
    """Raised as the body of a Session's block would begin, in a task that has none to run."""


def chief_run(
    settings: Settings,
    model: torch.nn.Module,
    optimization: Optimization | None,
    loaders: Sequence[Loader],
) -> ScriptRun | None:
    """The run that the chief leads; None in other tasks, once it is over.

    loaders: those of the script so far, in the order in which all tasks have made them.

    Raises: UsageError for a second training in one model_dir
    """
    require_no_feeding()
    context = current()
    folder, role = next_run(context), role_in_training(context)
    if context is not None and folder is not None and role is not Role.CHIEF:
        _serve(context, folder, loaders if role is Role.STREAMER else ())
        if settings.only is not None:
            sys.exit(0)  # as the chief does
        return None
    if optimization is not None:
        _require_another_folder(settings)
    run = Run(
        _is_recorded,
        settings.model_dir,
        settings.config,
        None,
        context,
        folder,
        NoReports(),
        loaders[0].dataset_of_batches,
        _is_recorded,
    )
    if settings.only is not None:
        return Prepared(run, model, optimization, list(loaders), only=settings.only)
    return ScriptRun(run, model, optimization, list(loaders))


_trained: list[Settings] = []  # of the newest Session that trains


def _require_another_folder(settings: Settings) -> None:
    """Raises: UsageError for a second training in a model_dir: it would replay the first"""
    if any(settings is one for one in _trained):
        raise UsageError(
            f"{user_line()}: a second training of the script would go on from the first one's "
            f"checkpoints in {settings.model_dir}: call cbtorch.initialize(model_dir=...) before "
            "it, with a folder of its own, or train both in one Session"
        )
    _trained[:] = [settings]


def _serve(context: TaskContext, folder: Any, loaders: Sequence[Loader]) -> None:
    datasets = [loader.dataset_of_batches for loader in loaders]

    def hear(number: int, told: bytes) -> None:
        loaders[number].orders.adopt(told)

    serve(context, folder, datasets, hear)


def leave_block(frame: FrameType) -> None:
    """Have the with statement of a frame, which is being entered, leave its block at once.

    Its first line raises `BlockIsLeft`, which the end of the block must take.
    Source: the Python documentation, sys.settrace: a frame's own trace function
    """
    before, of_frame = sys.gettrace(), frame.f_trace

    def leave(traced: FrameType, event: str, argument: Any) -> NoReturn:
        sys.settrace(before)
        frame.f_trace = of_frame
        raise BlockIsLeft

    sys.settrace(lambda *_: None)
    frame.f_trace = leave


def _is_recorded(*_: Any) -> NoReturn:
    raise AssertionError("the model of a PyTorch script is recorded, not called")
