"""The user's own Parameters and buffers, into the store and out of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from csrun.records.torch_names import stored_name, torch_identity


def write_weights(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """The user's values are the first ones."""
    for name, tensor in _tensors(model):
        if (stored := stored_name(name)) in state:
            state[stored][...] = tensor.detach().numpy()


def read_weights(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Put the store's values into the user's Parameters and buffers."""
    with torch.no_grad():
        for name, tensor in _tensors(model):
            if (stored := stored_name(name)) in state:
                tensor.copy_(torch.from_numpy(np.array(state[stored])))


def names_of(model: torch.nn.Module) -> dict[str, str]:
    """What a checkpoint says of the model's names, of tied weights all that they have."""
    own = {id(tensor): name for name, tensor in _tensors(model)}
    again = [*model.named_parameters(remove_duplicate=False)]
    again += model.named_buffers(remove_duplicate=False)
    names = {name: own[id(tensor)] for name, tensor in again}
    tied = {name: other for name, other in names.items() if name != other}
    return torch_identity(own.values(), tied)


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
