"""Conversion between a checkpoint's weights and state_dict files of torch.save.

Both files are memory-mapped, so at most one tensor uses memory that the kernel cannot evict.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csrun.base import files
from csrun.base.errors import UsageError
from csrun.records.checkpoints import Checkpoint
from csrun.records.state_dict import names_in_state_dict
from csrun.records.tensor_files import Array, Blocks, tensors_in

NESTED = ("state_dict", "model_state_dict", "model")  # keys of a state_dict inside a larger dict


def write_file(path: Path, checkpoint: Checkpoint) -> int:
    """Write a checkpoint's weights as a state_dict, verified; return their number.

    Raises: CsrunError if the checkpoint is damaged, or the file cannot be written
    """
    names = names_in_state_dict(checkpoint)
    for ours in dict.fromkeys(names.values()):
        checkpoint.tensor(ours)  # verifies its checksum: torch.save writes the mapped file
    mapped = {ours: _mapped(checkpoint, ours) for ours in dict.fromkeys(names.values())}
    state = {theirs: mapped[ours] for theirs, ours in names.items()}
    with (
        files.writing(path),
        files.atomic_replacement(path) as temporary,
        open(files.create_new(temporary), "wb") as file,
    ):
        torch.save(state, file)
    return len(state)


def _mapped(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """Return a tensor mapped from the checkpoint's file; tied ones share the memory."""
    stored = tensors_in(checkpoint.path)[name]
    dtype = checkpoint.manifest.tensors[name].dtype
    array = np.memmap(checkpoint.path, dtype, "c", stored.start, stored.shape)
    return torch.from_numpy(np.asarray(array))


def tensors_of(path: Path) -> dict[str, Blocks]:
    """Return the float tensors of a state_dict file, tied ones once, half precision as float32.

    Raises: UsageError for a file without a state_dict, or one that would run code when loaded
    """
    found = {}
    places = set()
    for name, tensor in _state_dict(path).items():
        _require_values(path, name, tensor)
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.is_floating_point() and (place not in places or not tensor.numel()):
            places.add(place)
            found[name] = _blocks(tensor)
    return found


def _require_values(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Raises: UsageError for a tensor that is not dense, or does not have all its values"""
    if tensor.is_nested:
        raise UsageError(f"{path}: {name} is a nested tensor: save its to_padded_tensor() instead")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{path}: {name} is {tensor.layout}: save its to_dense() instead")
    if tensor.is_meta:
        raise UsageError(f"{path}: {name} is on the meta device and has no values: load it first")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UsageError(f"{path}: {name} repeats its values, as expand() does: save its clone()")


def _state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        found: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:  # of many types, raised by torch's unpickler
        if "mmap can only be used" in str(error):  # PyTorch's message for another format
            raise UsageError(
                f"{path}: not a file of torch.save, or one from before PyTorch 1.6: torch.load it "
                "and torch.save it again"
            ) from error
        why = str(error).partition("\n")[0]
        raise UsageError(
            f"{path}: torch.load(weights_only=True) cannot read it: {why}; save the model's "
            "state_dict() with torch.save"
        ) from error
    if isinstance(found, Mapping):
        found = next((found[key] for key in NESTED if isinstance(found.get(key), Mapping)), found)
        tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
        if tensors and all(isinstance(name, str) for name in tensors):
            return tensors
    raise UsageError(f"{path}: has no state_dict: save model.state_dict() with torch.save")


def _blocks(tensor: torch.Tensor) -> Blocks:
    is_double = tensor.dtype is torch.float64

    def make() -> Iterator[Array]:
        yield tensor.detach().to(torch.float64 if is_double else torch.float32).numpy()

    dtype = np.dtype(np.float64 if is_double else np.float32)
    return Blocks(tuple(tensor.shape), dtype, make)
