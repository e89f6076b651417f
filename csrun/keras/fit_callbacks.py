"""Callbacks of a fit: called ones, and those that csrun replaces."""

import logging
from collections.abc import Sequence
from typing import Any

from csrun.base.errors import UsageError
from csrun.context.rerun import rerun

log = logging.getLogger("csrun")

#: Callbacks of Keras that are not called, and why; said once per fit.
_NOT_NEEDED = {
    "TensorBoard": "losses, metrics and learning rates are in the events of model_dir",
    "BackupAndRestore": "a training resumes from its newest checkpoint in model_dir",
    "ProgbarLogger": "log_steps in the config sets how often the loss is logged",
}
#: Callbacks of Keras that write files.
_WRITING = ("CSVLogger", "ModelCheckpoint")
#: Callbacks of Keras that cannot be called, and what to do.
_REFUSED = {
    "SwapEMAWeights": "leave it out: the model has the averages after the training",
    "RemoteMonitor": "use a LambdaCallback(on_epoch_end=...) that sends the logs",
}
_OF_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_NEVER_CALLED = ("on_test_batch_begin", "on_test_batch_end")


def callbacks_of(given: Any) -> list[Any]:
    """Return the callbacks of an argument: none, one, or a list.

    Raises: UsageError for one that csrun cannot call
    """
    found = [given] if hasattr(given, "on_epoch_end") else [*(given or ())]
    for callback in found:
        kind = type(callback).__name__
        if _is_of_keras(type(callback)) and kind in _REFUSED:
            raise UsageError(f"fit: callback {kind} is not supported: {_REFUSED[kind]}")
        for method in _NEVER_CALLED:
            if _is_own(callback, method):
                raise UsageError(
                    f"fit: {kind}.{method} is not called: csrun evaluates all batches at once: "
                    "use on_test_end"
                )
    return found


def called(callbacks: Sequence[Any]) -> list[Any]:
    """Return the callbacks that are called; in a rerun none that writes files of the run."""
    return [each for each in callbacks if _why_not_called(each) is None]


def log_not_called(callbacks: Sequence[Any]) -> None:
    """Log which callbacks are not called, and why."""
    for callback in callbacks:
        if (why := _why_not_called(callback)) is not None:
            log.info(f"fit: callback {type(callback).__name__} is not called: {why}")


def _why_not_called(callback: Any) -> str | None:
    kind = type(callback)
    if not _is_of_keras(kind):
        return None
    if rerun() is not None and kind.__name__ in _WRITING:
        return "steps of a finished run are repeated, whose files are kept"
    return _NOT_NEEDED.get(kind.__name__)


def needs_batches(callback: Any) -> bool:
    """Return whether a callback must be called for each batch."""
    saves_often = getattr(callback, "save_freq", "epoch") != "epoch"  # a ModelCheckpoint
    return saves_often or any(_is_own(callback, method) for method in _OF_BATCHES)


def ends_on_nan(callback: Any) -> bool:
    """Return whether a callback ends a training at a loss that is not finite."""
    return any(kind.__name__ == "TerminateOnNaN" for kind in type(callback).__mro__)


def _is_own(callback: Any, method: str) -> bool:
    """Return whether a callback's method is the user's, instead of Keras's."""
    if method in vars(callback):  # of a LambdaCallback
        return True
    kinds = (kind for kind in type(callback).__mro__ if method in vars(kind))
    return not _is_of_keras(next(kinds, object)) and hasattr(callback, method)


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "keras"
