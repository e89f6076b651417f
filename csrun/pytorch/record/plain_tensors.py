"""Plain tensors among the operands of a step: constants, and inputs of each step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import torch

from csrun.pytorch.deferred_init.tape import materialize
from csrun.pytorch.record.arguments import map_arguments
from csrun.pytorch.record.equal_bits import have_equal_bits
from csrun.pytorch.record.recording import GraphLeaf, LeafSource, Ref
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedStorage, TracedTensor

aten = torch.ops.aten
#: Operators on sparse matrices, with their dense equivalents.
_OF_DENSE = {
    aten._sparse_mm.default: aten.mm.default,
    aten._sparse_addmm.default: aten.addmm.default,
}


class _LeafRecorder(Protocol):
    """The recorder, as used here."""

    model: torch.nn.Module
    leaves: list[GraphLeaf]

    def traced(self, tensor: torch.Tensor) -> TracedTensor: ...

    def add_plain(
        self, numbers: torch.Tensor, source: LeafSource, name: str = "", stored: str = ""
    ) -> TracedTensor: ...

    def is_constant(self, tensor: torch.Tensor) -> bool: ...

    def is_owned(self, tensor: torch.Tensor) -> bool: ...


class PlainTensors:
    """Plain tensors of one recording, by their ids; each is kept alive."""

    def __init__(self, recorder: _LeafRecorder) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor, TracedTensor]] = {}
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._dense_forms: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.buffers: set[Ref] = set()  # leaves of the model's integer buffers
        self._varying: dict[int, torch.Tensor] = {}  # inputs of each step

    @cached_property
    def float_type(self) -> torch.dtype | None:
        """Type of the model's floats."""
        parameters = self._recorder.model.parameters()
        return next((p.dtype for p in parameters if p.is_floating_point()), None)

    def note_varying(self, tensor: Any) -> None:
        """Note that a tensor is another one in each step."""
        self._varying[id(tensor)] = tensor

    def is_varying(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is another one in each step."""
        return id(tensor) in self._varying

    def as_input(self, argument: Any) -> Any:
        """Return the traced tensor of a plain one that is an input of the step; others unchanged.

        Booleans are constants, since an index by them determines a shape.
        """
        if not self.may_be_input(argument):
            return argument
        self.note_varying(argument)
        with unrecorded():
            return self._recorder.traced(argument)

    def may_be_input(self, argument: Any) -> bool:
        """True for a plain tensor that may be an input of the step."""
        if type(argument) is not torch.Tensor or argument.requires_grad:
            return False
        if argument.dtype is torch.bool or argument.layout is not torch.strided:
            return False
        is_of_type = not argument.is_floating_point() or argument.dtype == self.float_type
        return is_of_type and self._recorder.is_constant(argument)

    def traced(self, tensor: torch.Tensor) -> TracedTensor:
        """Return the leaf of a tensor; a new one if the tensor was written since the last."""
        numbers = self.numbers_of(tensor)
        _, known, made = self._known.get(id(tensor), (None, None, None))
        if made is None or known is not numbers:
            made = self._recorder.add_plain(numbers, self.source_of(tensor))
            self._known[id(tensor)] = tensor, numbers, made
        return made

    def buffer(self, tensor: torch.Tensor, name: str) -> TracedTensor:
        """Return the leaf of an integer buffer of the model, as of a tensor."""
        numbers = self.numbers_of(tensor)
        _, known, made = self._known.get(id(tensor), (None, None, None))
        if made is None or known is not numbers:
            kind = "boolean" if tensor.dtype is torch.bool else "integer"
            stored = f"{kind} buffer {name}"
            made = self._recorder.add_plain(numbers, LeafSource.CONSTANT, name, stored)
            self._known[id(tensor)] = tensor, numbers, made
            self.buffers.add(made.value)
        return made

    def numbers_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor's numbers; the same copy until they change."""
        now = materialize(tensor)
        _, numbers = self._copies.get(id(tensor), (None, None))
        if numbers is None or not have_equal_bits(numbers, now):
            numbers = now.detach().clone()
            self._copies[id(tensor)] = tensor, numbers
        return numbers

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `numbers_of`, outside of any operator."""
        with unrecorded():
            return self.numbers_of(tensor)

    def fresh(self, tensor: torch.Tensor) -> TracedTensor:
        """Return a leaf with a tensor's initial numbers."""
        with unrecorded():
            numbers = tensor.detach().clone()
        return self._recorder.add_plain(numbers, self.source_of(tensor))

    def value_of(self, tensor: torch.Tensor, numbers: torch.Tensor) -> Ref | None:
        """Return the value of the leaf of a tensor with these numbers; None if there is none."""
        _, known, made = self._known.get(id(tensor), (None, None, None))
        return made.value if made is not None and known is numbers else None

    def leaf_of(self, tensor: torch.Tensor) -> Ref | None:
        """Return the value of a tensor's last leaf."""
        known = self._known.get(id(tensor))
        return None if known is None else known[2].value

    def tensor_in(self, memory: TracedStorage) -> torch.Tensor:
        """Return the tensor whose leaf has this memory."""
        return next(each for each, _, made in self._known.values() if made.memory is memory)

    def note_write(self, tensor: torch.Tensor) -> None:
        """Keep the leaf of a tensor that was written like its leaf."""
        with unrecorded():
            numbers = tensor.detach().clone()
        self._copies[id(tensor)] = tensor, numbers
        self._known[id(tensor)] = tensor, numbers, self._known[id(tensor)][2]

    def note_leaf(
        self, tensor: torch.Tensor, numbers: torch.Tensor, made: TracedTensor, leaf: GraphLeaf
    ) -> None:
        """Set the leaf of a tensor, which an earlier step has used in its place."""
        self._known[id(tensor)] = tensor, numbers, made
        if leaf.source is LeafSource.SCRIPT:
            self.note_varying(tensor)
        if self._recorder.is_owned(tensor):
            self.buffers.add(leaf.value)

    def forget(self) -> None:
        """Forget the leaves, because the step is recorded again from its beginning."""
        self._known.clear()
        self.buffers.clear()

    def source_of(self, tensor: torch.Tensor) -> LeafSource:
        """Return the source of a tensor's leaf."""
        return LeafSource.SCRIPT if self.is_varying(tensor) else LeafSource.CONSTANT

    def constants(self) -> Iterator[tuple[torch.Tensor, GraphLeaf]]:
        """Yield the tensors that became constants, with their leaves."""
        leaves = self._recorder.leaves
        of = {leaf.value: leaf for leaf in leaves if leaf.source is LeafSource.CONSTANT}
        for tensor, _, made in self._known.values():
            if made.value in of:
                yield tensor, of[made.value]

    def with_dense(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Return an operator and its arguments with dense tensors in place of sparse ones."""
        args, kwargs = map_arguments(self._dense, args, kwargs)
        return _OF_DENSE.get(func, func), args, kwargs

    def _dense(self, argument: Any) -> Any:
        if not is_sparse(argument):
            return argument
        if id(argument) not in self._dense_forms:
            self._dense_forms[id(argument)] = argument, argument.detach().to_dense()
        return self._dense_forms[id(argument)][1]


def is_sparse(argument: Any) -> bool:
    """True for a plain tensor that is not dense."""
    is_plain = isinstance(argument, torch.Tensor) and not isinstance(argument, TracedTensor)
    return is_plain and argument.layout is not torch.strided
