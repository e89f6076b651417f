"""List of a folder's checkpoints and their state."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from csrun.base.errors import CsrunError, UsageError
from csrun.records.checkpoints import folder_files, read

LATEST, KEPT, UNNAMED = "latest", "kept", "not in the index"


@dataclass(frozen=True)
class Listed:
    """One checkpoint of a folder, as described by its small files.

    nbytes: size of its files.
    written_s: time since the epoch.
    place: `latest`, `kept` or `not in the index`.
    problem: reason why it cannot be opened.
    """

    name: str
    step: int
    nbytes: int
    written_s: float
    place: str
    identity: dict[str, str]
    problem: str | None


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """Result of verifying a checkpoint; tensors, nbytes: how much was read."""

    name: str
    tensors: int
    nbytes: int
    damages: tuple[str, ...]


def listing(model_dir: Path) -> list[Listed]:
    """Return the checkpoints of a folder, oldest first.

    Raises: UsageError if there are none
    """
    names = [folder_files.name_of(step) for step in reversed(folder_files.steps_in(model_dir))]
    if not names:
        raise UsageError(f"{model_dir}: no checkpoint; pass a model_dir, or a checkpoint file")
    try:
        index = folder_files.read_index(model_dir)
    except CsrunError:  # reported by `verify`
        index = None
    return [_listed(model_dir, name, index) for name in names]


def index_problem(model_dir: Path) -> str | None:
    """Return the problem of a folder's index: unreadable, or naming missing checkpoints."""
    try:
        index = folder_files.read_index(model_dir)
        gone = [
            name
            for name in (index.kept if index else ())
            if not folder_files.checkpoint_exists(model_dir, name)
        ]
        # A running training deletes some, and rewrites the index.
        if not gone or folder_files.read_index(model_dir) != index:
            return None
    except CsrunError as error:
        return str(error)
    return f"it names missing checkpoints: {', '.join(gone)}"


def _listed(model_dir: Path, name: str, index: folder_files.Index | None) -> Listed:
    paths = (
        folder_files.tensors_path(model_dir, name),
        folder_files.manifest_path(model_dir, name),
    )
    found: list[stat_result] = []
    for path in paths:
        with suppress(OSError):  # one of the two files may be missing
            found.append(path.stat())
    nbytes = sum(status.st_size for status in found)
    written_s = max((status.st_mtime for status in found), default=0.0)
    place = UNNAMED
    if index is not None and name in index.kept:
        place = LATEST if name == index.latest else KEPT
    identity: dict[str, str] = {}
    problem = None
    try:
        identity = read.checked(model_dir, name).manifest.identity
    except read.CheckpointDamagedError as damage:
        problem = str(damage)
    return Listed(name, folder_files.step_of(name), nbytes, written_s, place, identity, problem)


def verify(model_dir: Path, name: str, show: Callable[[int, int], None]) -> VerifiedCheckpoint:
    """Read all of a checkpoint, tensor by tensor; show: called with the bytes read and in total."""
    try:
        checkpoint = read.checked(model_dir, name)
    except read.CheckpointDamagedError as damage:
        return VerifiedCheckpoint(name, 0, 0, (str(damage),))
    done, total = 0, checkpoint.nbytes
    damages: list[str] = []
    for tensor, wrong in checkpoint.damages():
        # a damage of the file is that of each tensor
        if wrong is not None and wrong not in damages:
            damages.append(wrong)
        done += checkpoint.manifest.tensors[tensor].nbytes
        show(done, total)
    return VerifiedCheckpoint(name, len(checkpoint.manifest.tensors), total, tuple(damages))
