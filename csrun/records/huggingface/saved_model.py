"""Folder of a saved model: config.json, and safetensors in one file or in shards with an index.

Source: huggingface.co/docs/transformers, page Loading models, section Sharded checkpoints
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from csrun.base import files
from csrun.base.errors import CsrunError, UsageError
from csrun.base.stored import UNREADABLE
from csrun.records import tensor_files
from csrun.records.tensor_files import Array, Blocks, Stored, TensorFileError

CONFIG = "config.json"
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
METADATA = {"format": "pt"}  # required by transformers
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class _WeightIndex(msgspec.Struct, frozen=True):
    """model.safetensors.index.json: file of each tensor."""

    weight_map: dict[str, str]


@dataclass(frozen=True)
class Folder:
    """A saved model: its configuration, and the locations of its tensors."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Stored]


def size_in_bytes(text: str) -> int:
    """Parse a size with KB, MB or GB, as in transformers: 5GB is 5,000,000,000.

    Raises: UsageError
    """
    found = re.fullmatch(r"(\d+)\s*(KB|MB|GB|)", text.strip().upper())
    if not found or not int(found[1]):
        raise UsageError(f"--max_shard_size: must be a size like 500MB or 5GB, got {text}")
    return int(found[1]) * _UNITS[found[2]]


def open_folder(path: Path) -> Folder:
    """Open a saved model; only the headers of its tensors' files are read.

    Raises: UsageError for a folder without a model, or with a missing file; CsrunError for a
    damaged one
    """
    try:
        config = _decoded(path / CONFIG, dict[str, Any])
        if (path / ONE_FILE).exists():
            return Folder(path, config, tensor_files.tensors_in(path / ONE_FILE))
        return Folder(path, config, _in_shards(path))
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: no {Path(error.filename).name}; a transformers model has {CONFIG} and "
            f"{ONE_FILE} or {INDEX}"
        ) from error
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except TensorFileError as error:
        raise CsrunError(f"{error}; download or save it again") from error


def _in_shards(path: Path) -> dict[str, Stored]:
    places = _decoded(path / INDEX, _WeightIndex).weight_map
    names = sorted(set(places.values()))
    # A foreign index may name any path: ../ or an absolute one.
    if outside := [name for name in names if Path(name).name != name]:
        raise TensorFileError(f"{path / INDEX}: names a file outside its folder: {outside[0]}")
    if gone := [name for name in names if not (path / name).is_file()]:
        raise UsageError(f"{path}: files named in the index are missing: {', '.join(gone)}")
    shards = {name: tensor_files.tensors_in(path / name) for name in names}
    if lost := [tensor for tensor, name in places.items() if tensor not in shards[name]]:
        raise TensorFileError(f"{path / INDEX}: tensors missing from its files: {', '.join(lost)}")
    return {tensor: shards[name][tensor] for tensor, name in places.items()}


def _decoded(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(files.read_input(path, files.SMALL_FILE_BYTES), type=kind)
    except UNREADABLE as error:
        raise TensorFileError(f"{path}: {error}") from error


def write_folder(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array | Blocks],
    max_shard_bytes: int,
) -> list[str]:
    """Write a model's folder; return the names of its files of tensors. Only a single tensor may
    exceed the size.

    Raises: UsageError if the folder has a model already; CsrunError if it cannot be written
    """
    with files.writing(path):
        files.make_folder(path)
    names = (*sorted(file.name for file in path.glob("*.safetensors")), INDEX, CONFIG)
    if there := next((name for name in names if (path / name).exists()), None):
        raise UsageError(f"{path}: already has a model ({there}): choose another folder")
    shards = _shards(tensors, max_shard_bytes)
    with files.writing(path):
        for name, shard in shards.items():
            _write_file(path / name, shard)
        if len(shards) > 1:
            places = {tensor: name for name, shard in shards.items() for tensor in shard}
            total = sum(tensor.nbytes for tensor in tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            files.write_atomic(path / INDEX, _text(index))
        # Last: a folder with a configuration is considered complete.
        files.write_atomic(path / CONFIG, _text(config))
    return list(shards)


def _shards(
    tensors: Mapping[str, Array | Blocks], max_bytes: int
) -> dict[str, dict[str, Array | Blocks]]:
    """Return the tensors of each file, in order, by file name."""
    parts: list[dict[str, Array | Blocks]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + tensor.nbytes > max_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    if len(parts) == 1:
        return {ONE_FILE: parts[0]}
    count = len(parts)
    return {
        f"model-{number:05}-of-{count:05}.safetensors": part for number, part in enumerate(parts, 1)
    }


def _write_file(path: Path, tensors: Mapping[str, Array | Blocks]) -> None:
    with files.atomic_replacement(path) as temporary:
        tensor_files.write(temporary, tensors, METADATA)


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
