"""Checkpoint queries of `tf.train`, also answered for csrun's folders."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from csrun.base.errors import CsrunError
from csrun.records import checkpoints


def add_checkpoint_state(tensorflow: Any) -> None:
    """Make `tf.train` find csrun's checkpoints, too.

    latest_checkpoint, with which scripts choose the batches to skip, does not return csrun's: csrun
    itself continues the input of a resumed training.
    """
    state, latest = tensorflow.train.get_checkpoint_state, tensorflow.train.latest_checkpoint

    def find_state(checkpoint_dir: Any, latest_filename: Any = None) -> Any:
        names = _kept(checkpoint_dir) if latest_filename is None else []
        return _state_of(names) if names else state(checkpoint_dir, latest_filename)

    def find_latest(checkpoint_dir: Any, latest_filename: Any = None) -> Any:
        is_ours = latest_filename is None and _kept(checkpoint_dir)
        return None if is_ours else latest(checkpoint_dir, latest_filename)

    replaced: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("get_checkpoint_state", find_state),
        ("latest_checkpoint", find_latest),
    )
    for name, function in replaced:
        for module in (tensorflow.train, tensorflow.compat.v1.train):
            setattr(module, name, function)


def _kept(folder: Any) -> list[str]:
    """Return paths of csrun's checkpoints in a folder, oldest first."""
    place, steps = Path(folder), tuple[int, ...]()
    with suppress(CsrunError):  # an index of TensorFlow
        steps = checkpoints.kept_steps(place)
    return [str(place / checkpoints.name_of(step)) for step in steps]


def _state_of(paths: list[str]) -> Any:
    """Return the answer in TensorFlow's form."""
    from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

    return CheckpointState(model_checkpoint_path=paths[-1], all_model_checkpoint_paths=paths)
