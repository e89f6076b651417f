"""Writing of a checkpoint, tensor by tensor at offsets known in advance."""

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from csrun.base import files, stored
from csrun.base.errors import CsrunError
from csrun.records import tensor_files
from csrun.records.checkpoints import folder_files
from csrun.records.checkpoints.folder_files import Array
from csrun.records.checkpoints.read import Checkpoint
from csrun.records.tensor_files import Blocks

log = logging.getLogger("csrun")


class StoppedError(Exception):
    """The writer was stopped before the checkpoint was complete."""


class Writer:
    """Writer of the checkpoints of a folder; it must be the only writer.

    The folder is listed once, so the cost of a save does not depend on the number of checkpoints.
    The writer may run in a thread that another one stops.
    """

    def __init__(self, model_dir: Path, identity: Mapping[str, str], keep: int) -> None:
        self._model_dir = model_dir
        self._identity = dict(identity)
        self._keep = keep
        self._kept: list[str] | None = None  # oldest first, after the folder was listed
        # held while a checkpoint takes its place; `stop` waits for it
        self._placing = threading.Lock()
        self._temporary: Path | None = None
        self._is_stopped = False

    def write(
        self,
        step: int,
        tensors: Mapping[str, Array | Blocks],
        copied: Callable[[str], None] = lambda name: None,
        order: Iterable[str] | None = None,
    ) -> Path:
        """Write the checkpoint of a global step, and delete the oldest one.

        copied: called with each tensor that may change from then on, though it is not on the disk
            yet.
        order: order in which tensors are copied.

        Raises: CsrunError if the disk is full or cannot be written; earlier checkpoints stay
        intact. StoppedError
        """
        name = folder_files.name_of(step)
        path = folder_files.tensors_path(self._model_dir, name)
        temporary = self._temporary = files.temporary_name(path)
        superseded = self._list_kept() if self._kept is None else []

        def report_copied(tensor: str) -> None:
            copied(tensor)
            self._go_on()

        try:
            entries = _write_tensors(temporary, tensors, report_copied, order)
            with self._placing:
                self._go_on()
                self._drop(name)
                temporary.replace(path)
                # The file's directory entry is on the disk before the manifest is written.
                files.sync_folder(self._model_dir)
                manifest = folder_files.Manifest(step, self._identity, entries)
                stored.write(folder_files.manifest_path(self._model_dir, name), manifest)
                self._name(name, superseded)
        except OSError as error:
            files.discard(temporary)  # before the free space is measured
            if not os.path.lexists(folder_files.manifest_path(self._model_dir, name)):
                files.discard(path)  # without its manifest it is not a checkpoint
            raise _failed(path, tensors, error) from error
        finally:
            files.discard(temporary)
        return path

    def stop(self) -> None:
        """Stop the writer, from another thread: its checkpoint is complete by now, or never will
        be.
        """
        self._is_stopped = True
        with self._placing:
            if self._temporary is not None:
                files.discard(self._temporary)  # the writer may wait for its disk, and never notice

    def _go_on(self) -> None:
        if self._is_stopped:
            raise StoppedError

    def _list_kept(self) -> list[str]:
        """List the checkpoints that are kept, and delete older ones left by a killed writer."""
        files.sweep_temporaries(self._model_dir)
        there = [
            folder_files.name_of(step) for step in reversed(folder_files.steps_in(self._model_dir))
        ]
        index = folder_files.read_index(self._model_dir)
        self._kept = there if index is None else list(index.kept)
        oldest = min(map(folder_files.step_of, self._kept), default=0)
        return [name for name in there if folder_files.step_of(name) < oldest]

    def _drop(self, name: str) -> None:
        """Remove a checkpoint from the index before its files are replaced, unless it is the only
        one.
        """
        kept = [old for old in self._kept or () if old != name]
        if kept and len(kept) != len(self._kept or ()):
            self._write_index(kept)

    def _name(self, name: str, superseded: list[str]) -> None:
        kept = [old for old in self._kept or () if old != name]
        kept.append(name)
        self._write_index(kept[-self._keep :])
        # Last: a checkpoint's files are deleted after it has left the index on the disk.
        _remove(self._model_dir, (*superseded, *kept[: -self._keep]))

    def _write_index(self, kept: list[str]) -> None:
        stored.write(
            self._model_dir / folder_files.INDEX_FILE, folder_files.Index(kept[-1], tuple(kept))
        )
        self._kept = kept


def write(
    model_dir: Path,
    step: int,
    tensors: Mapping[str, Array | Blocks],
    identity: Mapping[str, str],
    keep: int,
) -> Path:
    """Write one checkpoint and keep the newest `keep`, as `Writer.write`."""
    return Writer(model_dir, identity, keep).write(step, tensors)


def copy(checkpoint: Checkpoint, model_dir: Path) -> None:
    """Copy a checkpoint to a model_dir that has none."""
    for path_of in (folder_files.tensors_path, folder_files.manifest_path):
        source = path_of(checkpoint.model_dir, checkpoint.name)
        shutil.copyfile(source, path_of(model_dir, checkpoint.name))
    index = folder_files.Index(checkpoint.name, (checkpoint.name,))
    stored.write(model_dir / folder_files.INDEX_FILE, index)


def _write_tensors(
    path: Path,
    tensors: Mapping[str, Array | Blocks],
    copied: Callable[[str], None],
    order: Iterable[str] | None,
) -> dict[str, folder_files.TensorEntry]:
    checksums = tensor_files.write(path, tensors, copied=copied, order=order)
    return {name: folder_files.entry_of(tensors[name], crc32) for name, crc32 in checksums.items()}


def _remove(model_dir: Path, names: Iterable[str]) -> None:
    """Delete checkpoints in this folder; one that cannot be deleted is reported and kept."""
    # By descriptor: if the folder is replaced by a link, nothing elsewhere is deleted.
    folder = os.open(model_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            for path in (
                folder_files.tensors_path(model_dir, name),
                folder_files.manifest_path(model_dir, name),
            ):
                try:
                    os.unlink(path.name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("%s: cannot be removed: %s", path, error.strerror)
    finally:
        os.close(folder)


def _failed(path: Path, tensors: Mapping[str, Array | Blocks], error: OSError) -> CsrunError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CsrunError(f"{path}: cannot be written: {error.strerror}")
    needed = sum(array.nbytes for array in tensors.values())
    free = shutil.disk_usage(path.parent).free
    full = "disk full" if error.errno == errno.ENOSPC else "disk quota exceeded"
    since = " now" if free >= needed else ""
    return CsrunError(
        f"{path}: {full}: the checkpoint needs {needed:,} bytes, {free:,} are free{since}; "
        "earlier checkpoints are intact: free some space and run again to resume"
    )
