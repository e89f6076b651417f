"""Writing a checkpoint, tensor by tensor at offsets known beforehand."""

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path

from csrun.base import files, stored
from csrun.base.errors import CsrunError
from csrun.records.checkpoints import parts
from csrun.records.checkpoints.parts import Array

log = logging.getLogger("csrun")
_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64"}


class Writer:
    """Writes the checkpoints of a folder, of which it is the only writer.

    What the folder holds is looked at once: a save costs the same however many are kept.
    """

    def __init__(self, model_dir: Path, identity: Mapping[str, str], keep: int) -> None:
        self._model_dir = model_dir
        self._identity = dict(identity)
        self._keep = keep
        self._kept: list[str] | None = None  # oldest first, once the folder has been looked at

    def write(self, step: int, tensors: Mapping[str, Array]) -> Path:
        """Write the checkpoint of a global step, and let go of the oldest one.

        Raises: CsrunError when the disk is full or cannot be written; earlier checkpoints stay
        whole.
        """
        name = parts.name_of(step)
        path = parts.tensors_path(self._model_dir, name)
        temporary = files.temporary_beside(path)
        superseded = self._look() if self._kept is None else []
        try:
            entries = _write_tensors(temporary, tensors)
            self._drop(name)
            temporary.replace(path)
            files.sync_folder(self._model_dir)
            manifest = parts.Manifest(step, self._identity, entries)
            stored.write(parts.manifest_path(self._model_dir, name), manifest)
            self._name(name, superseded)
        except OSError as error:
            files.discard(temporary)  # before the free bytes are counted
            raise _failed(path, tensors, error) from error
        finally:
            files.discard(temporary)
        return path

    def _look(self) -> list[str]:
        """Learn what is kept so far; checkpoints older than that, which a killed writer left."""
        files.sweep_temporaries(self._model_dir)
        there = [parts.name_of(step) for step in reversed(parts.steps_in(self._model_dir))]
        index = parts.read_index(self._model_dir)
        self._kept = there if index is None else list(index.kept)
        oldest = min(map(parts.step_of, self._kept), default=0)
        return [name for name in there if parts.step_of(name) < oldest]

    def _drop(self, name: str) -> None:
        """Before its files are replaced, a checkpoint ceases to count, unless it is the only."""
        kept = [old for old in self._kept or () if old != name]
        if kept and len(kept) != len(self._kept or ()):
            self._write_index(kept)

    def _name(self, name: str, superseded: list[str]) -> None:
        kept = [old for old in self._kept or () if old != name]
        kept.append(name)
        self._write_index(kept[-self._keep :])
        _remove(self._model_dir, (*superseded, *kept[: -self._keep]))

    def _write_index(self, kept: list[str]) -> None:
        stored.write(self._model_dir / parts.INDEX_FILE, parts.Index(kept[-1], tuple(kept)))
        self._kept = kept


def write(
    model_dir: Path,
    step: int,
    tensors: Mapping[str, Array],
    identity: Mapping[str, str],
    keep: int,
) -> Path:
    """Write one checkpoint and keep the newest `keep`, as `Writer.write`."""
    return Writer(model_dir, identity, keep).write(step, tensors)


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> dict[str, parts.TensorEntry]:
    entries = {}
    with FileIO(files.create_new(path), "wb") as file:
        _write_all(file, memoryview(_header(tensors)))
        for name, array in tensors.items():
            memory, crc32 = parts.bytes_of(array), 0
            for start in range(0, len(memory), parts.CHUNK_BYTES):
                part = memory[start : start + parts.CHUNK_BYTES]
                _write_all(file, part)
                crc32 = zlib.crc32(part, crc32)
            entries[name] = parts.entry_of(array, crc32)
        os.fsync(file.fileno())
    return entries


def _header(tensors: Mapping[str, Array]) -> bytes:
    """The head of a safetensors file: the length of the JSON, and the JSON, padded to 8 bytes.

    Source: the safetensors format, github.com/huggingface/safetensors, README, section Format
    """
    head, offset = {}, 0
    for name, array in tensors.items():
        head[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_all(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _remove(model_dir: Path, names: Iterable[str]) -> None:
    """Remove checkpoints, in this folder alone; what cannot be removed is told of, and stays."""
    folder = os.open(model_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            for path in (parts.tensors_path(model_dir, name), parts.manifest_path(model_dir, name)):
                try:
                    os.unlink(path.name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("%s: cannot be removed: %s", path, error.strerror)
    finally:
        os.close(folder)


def _failed(path: Path, tensors: Mapping[str, Array], error: OSError) -> CsrunError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CsrunError(f"{path}: cannot be written: {error.strerror}")
    needed = sum(array.nbytes for array in tensors.values())
    free = shutil.disk_usage(path.parent).free
    return CsrunError(
        f"{path}: the disk is full: the checkpoint needs {needed:,} bytes, {free:,} are free; "
        "the checkpoints before it are whole; make room and run again to resume from the newest"
    )
