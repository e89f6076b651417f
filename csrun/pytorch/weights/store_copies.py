"""Copies between the user's Parameters and buffers and the store."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.pytorch.deferred_init.tape import is_meta, materialize
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.model_tensors import modules_of, tensors_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.records import checkpoints, tensor_files
from csrun.records.checkpoints import Checkpoint
from csrun.records.torch_names import stored_name, torch_identity


class StoredWeights(Mapping[str, torch.Tensor]):
    """Weights in a store by PyTorch's names, each copied on access."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._state[stored_name(name)], order="C"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def newest_of(model_dir: Path) -> Checkpoint:
    """Return the newest checkpoint, from which weights without memory are read.

    Raises: UsageError before a run's first step
    """
    newest = checkpoints.latest(model_dir)
    if newest is None:
        raise UsageError(
            f"{user_line()}: weights made under cbtorch.meta_init() have no memory before the "
            "first step: read them after it"
        )
    return newest


def mapped(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a checkpoint's file, memory-mapped copy-on-write.

    The file may be deleted afterwards; it is only open for a moment. Checksums are not verified,
    since that would read all of it.

    Raises: CsrunError for a damaged file
    """
    try:
        tensors = tensor_files.tensors_in(path)
    except (tensor_files.TensorFileError, OSError) as error:
        raise CsrunError(f"{path}: {error}") from error
    storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return {name: tensor.within(content) for name, tensor in tensors.items()}


def write_weights(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Write the user's values; those of `meta_init` are materialized one by one.

    A value of the store that has more digits than the user's type stays if it rounds to the user's.
    """
    for name, tensor in _tensors(model):
        if (stored := stored_name(name)) in state:
            own, had = materialize(tensor).detach().numpy(), np.asarray(state[stored])
            if own.dtype == had.dtype or _bytes(own) != _bytes(had.astype(own.dtype)):
                state[stored][...] = own


def read_weights(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Copy the store's values to the user's Parameters and buffers that have memory.

    The modes that watch the loop's use of them are off meanwhile.
    """
    targets, sources = [], []
    with unrecorded(), torch.no_grad():
        for name, tensor in _tensors(model):
            if (stored := stored_name(name)) in state and not is_meta(tensor):
                targets.append(tensor)
                sources.append(_as_tensor(state[stored]))
        if targets:
            torch._foreach_copy_(targets, sources)


def _as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor of the store's values, without a copy if they are writable memory."""
    values = np.asarray(array)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def changed_weights(
    model: torch.nn.Module, state: Mapping[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    """Return the user's values that differ from the store's in any bit, by their names there."""
    found = {stored_name(name): tensor.detach().numpy() for name, tensor in _tensors(model)}
    return {
        name: value
        for name, value in found.items()
        if name in state and _bytes(value) != _bytes(np.array(state[name]).astype(value.dtype))
    }


def _bytes(array: Any) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def names_of(model: torch.nn.Module) -> dict[str, str]:
    """Return a checkpoint's record of the model's names, with all names of tied weights."""
    own = {id(tensor): name for name, tensor in _tensors(model)}
    again = [*model.named_parameters(remove_duplicate=False)]
    again += model.named_buffers(remove_duplicate=False)
    names = {name: own[id(tensor)] for name, tensor in again}
    tied = {name: other for name, other in names.items() if name != other}
    return torch_identity(own.values(), tied)


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return tensors_of(modules_of(model))
