"""Lookup of the model's tensors: parameters, buffers and their `.data`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from csrun.pytorch.deferred_init.tape import address
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.record.model_group import ModelGroup
from csrun.pytorch.record.recording import LeafSource


@dataclass(frozen=True, eq=False)
class ModelTensor:
    """A tensor of the model, its PyTorch name, and its source in a recording.

    An integer buffer is a constant, as CIRH's states are floats.
    """

    tensor: torch.Tensor
    name: str
    source: LeafSource


class ModelTensors:
    """Tensors of one model at the beginning of its step. modules: by name, each once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self.modules = model, modules_of(model)
        self._by_id: dict[int, ModelTensor] = {}
        self._by_memory: dict[int, ModelTensor] = {}
        self.parameters = dict(_named(self.modules, "_parameters"))
        is_group = isinstance(model, ModelGroup)  # whose weights the step writes
        for name, parameter in self.parameters.items():
            source = LeafSource.BUFFER if is_group else LeafSource.PARAMETER
            self._add(ModelTensor(parameter, name, source))
        for name, buffer in _named(self.modules, "_buffers"):
            kind = LeafSource.BUFFER if buffer.is_floating_point() else LeafSource.CONSTANT
            self._add(ModelTensor(buffer, name, kind))

    def _add(self, entry: ModelTensor) -> None:
        self._by_id[id(entry.tensor)] = entry
        if address := _address(entry.tensor):
            self._by_memory.setdefault(address, entry)

    def add_new_buffers(self) -> None:
        """Add float buffers that the model did not have at the beginning of the step."""
        self.modules = modules_of(self._model)
        known = {entry.name for entry in self._by_id.values()}
        for name, buffer in _named(self.modules, "_buffers"):
            if name not in known:
                self._add(ModelTensor(buffer, name, LeafSource.BUFFER))

    def find(self, tensor: torch.Tensor) -> ModelTensor | None:
        """Return a tensor's entry; `parameter.data` is the parameter.

        Raises: CaptureError for a view that was taken before the step
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

    def is_parameter(self, tensor: object) -> bool:
        """True for a parameter of the model itself, not for its `.data`."""
        found = self._by_id.get(id(tensor))
        return found is not None and found.name in self.parameters

    def find_name(self, module: str, name: str) -> ModelTensor | None:
        """Return the tensor that a module had under a name at the beginning of the step."""
        path = f"{module}.{name}" if module else name
        return next((entry for entry in self._by_id.values() if entry.name == path), None)

    def counter_name(self, tensor: torch.Tensor) -> str | None:
        """Return the name of an integer or boolean buffer, None for another tensor."""
        found = self.find(tensor)
        return found.name if found and found.source is LeafSource.CONSTANT else None

    def replaced(self) -> Iterator[tuple[ModelTensor, torch.Tensor]]:
        """Yield replaced buffers, each with its replacement.

        Raises: CaptureError for a replaced parameter or integer buffer
        """
        for entry, now in self._replaced(self._by_id.values()):
            if entry.source is not LeafSource.BUFFER:
                raise _replaced(entry)
            yield entry, now

    def restore_counters(self) -> Iterator[tuple[ModelTensor, torch.Tensor]]:
        """Restore integer buffers replaced by tensors of their kind; yield as above."""
        counters = (e for e in self._by_id.values() if e.source is LeafSource.CONSTANT)
        for entry, now in self._replaced(counters):
            was = entry.tensor
            if now is not None and (now.shape, now.dtype) == (was.shape, was.dtype):
                self.restore(entry)
                yield entry, now

    def _replaced(self, entries: Iterable[ModelTensor]) -> Iterator[tuple[ModelTensor, Any]]:
        """Yield those that are replaced, each with its replacement."""
        for entry in entries:
            where, _, name = entry.name.rpartition(".")
            held = self.modules[where]
            now = held._parameters.get(name, held._buffers.get(name))
            if now is not entry.tensor:
                yield entry, now

    def restore(self, entry: ModelTensor) -> None:
        """Put a replaced tensor back."""
        where, _, name = entry.name.rpartition(".")
        setattr(self.modules[where], name, entry.tensor)


def _replaced(entry: ModelTensor) -> CaptureError:
    is_buffer = entry.source is not LeafSource.PARAMETER
    remedy = "keep its shape and type" if is_buffer else "make it a buffer, by register_buffer"
    return CaptureError(
        f"{user_line()}: {entry.name} of the model was replaced by another tensor in the step: "
        f"{remedy}"
    )


def modules_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the current `named_modules()` of a model, in a third of its time."""
    found: dict[str, torch.nn.Module] = {}
    seen: set[int] = set()
    rest = [("", model)]
    while rest:
        path, module = rest.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found[path] = module
        inner = reversed(module._modules.items())
        rest += [(f"{path}.{n}" if path else n, m) for n, m in inner if m is not None]
    return found


def tensors_of(modules: Mapping[str, torch.nn.Module]) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters, and then the buffers, of the modules of `modules_of` by name."""
    return [*_named(modules, "_parameters"), *_named(modules, "_buffers")]


def _named(modules: Mapping[str, torch.nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the same as PyTorch's `named_parameters` or `named_buffers`, without another
    traversal.
    """
    seen: set[int] = set()
    for path, module in modules.items():
        for name, tensor in getattr(module, kind).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def _address(tensor: torch.Tensor) -> int:
    """Return the address that identifies a tensor's memory; 0 if it has none."""
    has_one = tensor.layout is torch.strided and tensor.device.type in ("cpu", "meta")
    return address(tensor) if has_one else 0


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
