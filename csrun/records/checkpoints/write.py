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

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.files import (
    create_new,
    sweep_temporaries,
    sync_folder,
    temporary_beside,
    write_whole,
)
from csrun.records.checkpoints.layout import (
    CHUNK_BYTES,
    INDEX_FILE,
    PREFIX,
    Array,
    Index,
    Manifest,
    TensorEntry,
    bytes_of,
    entry_of,
    manifest_path,
    name_of,
    read_index,
    steps_in,
    tensors_path,
)

log = logging.getLogger("csrun")
_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64"}


def write(
    model_dir: Path,
    step: int,
    tensors: Mapping[str, Array],
    identity: Mapping[str, str],
    keep: int,
) -> Path:
    """Write the checkpoint of a global step and keep the newest `keep`.

    Raises: CsrunError when the disk is full or cannot be written; earlier checkpoints stay whole.
    """
    name = name_of(step)
    path = tensors_path(model_dir, name)
    temporary = temporary_beside(path)
    sweep_temporaries(model_dir)
    try:
        entries = _write_tensors(temporary, tensors)
        _drop_from_index(model_dir, name)
        temporary.replace(path)
        sync_folder(model_dir)
        manifest = Manifest(step, dict(identity), entries)
        write_whole(manifest_path(model_dir, name), _text(manifest))
        _name_in_index(model_dir, name, keep)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # before the free bytes are counted
        raise _failed(path, tensors, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> dict[str, TensorEntry]:
    entries = {}
    with FileIO(create_new(path), "wb") as file:
        _write_all(file, memoryview(_header(tensors)))
        for name, array in tensors.items():
            memory, crc32 = bytes_of(array), 0
            for start in range(0, len(memory), CHUNK_BYTES):
                part = memory[start : start + CHUNK_BYTES]
                _write_all(file, part)
                crc32 = zlib.crc32(part, crc32)
            entries[name] = entry_of(array, crc32)
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


def _drop_from_index(model_dir: Path, name: str) -> None:
    """Before its files are replaced, a checkpoint ceases to count, unless it is the only one."""
    index = read_index(model_dir)
    kept = tuple(old for old in (index.kept if index else ()) if old != name)
    if index is not None and kept and kept != index.kept:
        write_whole(model_dir / INDEX_FILE, _text(Index(kept[-1], kept)))


def _name_in_index(model_dir: Path, name: str, keep: int) -> None:
    kept = [old for old in _known(model_dir) if old != name]
    kept.append(name)
    write_whole(model_dir / INDEX_FILE, _text(Index(name, tuple(kept[-keep:]))))
    _remove(model_dir, {*kept[:-keep], *_older_than(model_dir, kept[-keep:])})


def _known(model_dir: Path) -> list[str]:
    """The checkpoints that count so far; those that are there where the index was lost."""
    index = read_index(model_dir)
    if index is not None:
        return list(index.kept)
    return [name_of(step) for step in reversed(steps_in(model_dir))]


def _older_than(model_dir: Path, kept: list[str]) -> list[str]:
    """Checkpoints older than all that are kept: left by a writer killed before it removed them."""
    oldest = min(int(name.removeprefix(PREFIX)) for name in kept)
    return [name_of(step) for step in steps_in(model_dir) if step < oldest]


def _remove(model_dir: Path, names: Iterable[str]) -> None:
    """Remove checkpoints, in this folder alone; what cannot be removed is told of, and stays."""
    folder = os.open(model_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            for path in (tensors_path(model_dir, name), manifest_path(model_dir, name)):
                try:
                    os.unlink(path.name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("%s: cannot be removed: %s", path, error.strerror)
    finally:
        os.close(folder)


def _text(record: Index | Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def _failed(path: Path, tensors: Mapping[str, Array], error: OSError) -> CsrunError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CsrunError(f"{path}: cannot be written: {error.strerror}")
    needed = sum(array.nbytes for array in tensors.values())
    free = shutil.disk_usage(path.parent).free
    return CsrunError(
        f"{path}: the disk is full: the checkpoint needs {needed:,} bytes, {free:,} are free; "
        "the checkpoints before it are whole; make room and run again to resume from the newest"
    )
