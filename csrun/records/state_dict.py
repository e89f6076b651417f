"""Conversion of a checkpoint's weights to and from tensors in PyTorch's layout."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from csrun.base import files
from csrun.base.errors import CsrunError, UsageError
from csrun.records import tensor_files
from csrun.records.checkpoints import Checkpoint, converted_identity, has_any
from csrun.records.checkpoints import write as write_checkpoint
from csrun.records.huggingface.saved_model import METADATA
from csrun.records.huggingface.tensor_conversion import FLOATS
from csrun.records.model_dir import locked, opened
from csrun.records.tensor_files import Array, Blocks, Stored, TensorFileError
from csrun.records.torch_names import are_stored_names, state_dict_names, stored_name


def names_in_state_dict(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the state_dict names of a checkpoint's weights, mapped to the checkpoint's names."""
    return state_dict_names(checkpoint.weights, checkpoint.manifest.identity)


def write_file(path: Path, checkpoint: Checkpoint) -> int:
    """Write a checkpoint's verified weights, tensor by tensor; return their number.

    Raises: CsrunError if the checkpoint is damaged, or the file cannot be written
    """
    entries = checkpoint.manifest.tensors
    tensors: dict[str, Array | Blocks] = {
        theirs: Blocks(
            entries[ours].shape, np.dtype(entries[ours].dtype), partial(_whole, checkpoint, ours)
        )
        for theirs, ours in names_in_state_dict(checkpoint).items()
    }
    with files.writing(path), files.atomic_replacement(path) as temporary:
        tensor_files.write(temporary, tensors, METADATA)
    return len(tensors)


def _whole(checkpoint: Checkpoint, name: str) -> Iterator[Array]:
    yield checkpoint.tensor(name)


def tensors_of(path: Path) -> dict[str, Blocks]:
    """Return the floating-point tensors of a safetensors file, by PyTorch's names; half precision
    as float32.

    Raises: UsageError if it cannot be read; CsrunError if it is damaged
    """
    try:
        found = tensor_files.tensors_in(path)
    except TensorFileError as error:
        raise CsrunError(f"{error}; save it again") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    return {name: _blocks(stored) for name, stored in found.items() if stored.code in FLOATS}


def _blocks(stored: Stored) -> Blocks:
    dtype = np.dtype(np.float64 if stored.code == "F64" else np.float32)

    def make() -> Iterator[Array]:
        yield stored.read().block(..., dtype)

    return Blocks(stored.shape, dtype, make)


def make_checkpoint(model_dir: Path, source: Path, tensors: Mapping[str, Any]) -> Path:
    """Create a checkpoint, at step 0, from a state_dict's tensors, each an array or `Blocks`.

    PyTorch's names become the store's; names of csrun.nn models are kept.

    Raises: UsageError if there are checkpoints already, if it has no tensor, or if two have one
    name
    """
    if not tensors:
        raise UsageError(f"{source}: no floating-point tensors")
    ours: dict[str, Any] = {}
    is_native = are_stored_names(tensors)
    for name, tensor in tensors.items():
        own = name if is_native else stored_name(name)
        if own in ours:
            raise UsageError(f"{source}: two tensors map to {own}: rename {name}")
        ours[own] = tensor
    with opened(model_dir), locked(model_dir, "csrun checkpoint convert"):
        if has_any(model_dir):
            raise UsageError(f"{model_dir}: has checkpoints already: choose another model_dir")
        return write_checkpoint(model_dir, 0, ours, converted_identity(source.name, ()), 1)
