"""The model's own tensors, however the loop comes by them: parameters, buffers, their `.data`."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from csrun.pytorch.deferred_init.tape import address
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.record.recording import Source


@dataclass(frozen=True, eq=False)
class Owned:
    """A tensor of the model, its PyTorch name, and what it is in a recording.

    A buffer of integers is a constant: csrun's states are of floats.
    """

    tensor: torch.Tensor
    name: str
    source: Source


class OwnedTensors:
    """Those of one model, as they are when its step begins."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._by_id: dict[int, Owned] = {}
        self._by_memory: dict[int, Owned] = {}
        for name, parameter in model.named_parameters():
            self._add(Owned(parameter, name, Source.PARAMETER))
        for name, buffer in model.named_buffers():
            kind = Source.BUFFER if buffer.is_floating_point() else Source.CONSTANT
            self._add(Owned(buffer, name, kind))

    def _add(self, owned: Owned) -> None:
        self._by_id[id(owned.tensor)] = owned
        if address := _address(owned.tensor):
            self._by_memory.setdefault(address, owned)

    def find(self, tensor: torch.Tensor) -> Owned | None:
        """What a tensor is to the model; `parameter.data` is the parameter.

        Raises: CaptureError for a part of one that was taken before the step
        """
        found = self._by_id.get(id(tensor))
        if found is not None or not self._by_memory:
            return found
        found = self._by_memory.get(_address(tensor))
        if found is None or _geometry(tensor) == _geometry(found.tensor):
            return found
        raise CaptureError(
            f"{user_line()}: a tensor is a view of {found.name} of the model that was taken "
            "before the step: take the view in forward, from the model"
        )

    def find_name(self, module: str, name: str) -> Owned | None:
        """Find what a module, by its path, had by a name when the step began."""
        path = f"{module}.{name}" if module else name
        return next((owned for owned in self._by_id.values() if owned.name == path), None)

    def is_counter(self, tensor: torch.Tensor) -> str | None:
        """The name of a buffer of integers."""
        found = self._by_id.get(id(tensor))
        return found.name if found and found.source is Source.CONSTANT else None

    def replaced(self) -> Iterator[tuple[Owned, torch.Tensor]]:
        """Buffers in whose place another tensor is now; the model gets its own back.

        Raises: CaptureError for a buffer that is not there any more, or a tensor of other numbers
        """
        for owned in self._by_id.values():
            where, _, name = owned.name.rpartition(".")
            module = self._model.get_submodule(where)
            now = getattr(module, name)
            if now is owned.tensor:
                continue
            if owned.source is not Source.BUFFER:
                raise CaptureError(
                    f"{user_line()}: {owned.name} of the model was replaced by another tensor in "
                    "the step: leave its updates to the optimizer"
                )
            setattr(module, name, owned.tensor)
            yield owned, now


def _address(tensor: torch.Tensor) -> int:
    """What tells its memory from others; 0 where it has none."""
    has_one = tensor.layout is torch.strided and tensor.device.type in ("cpu", "meta")
    return address(tensor) if has_one else 0


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
