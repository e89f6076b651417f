"""Plain tensors that a step creates, such as `torch.zeros(...)`, and then writes traced values
into.

At the first such write the tensor is converted: its values become a constant of the recording, and
from then on it, and its views, stand for traced tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import ref

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.record.geometry import Geometry
from csrun.pytorch.record.plain_tensors import PlainTensors
from csrun.pytorch.record.recording import returns_view
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

# shares its operand's memory, which nothing else refers to
_NEW = (torch.ops.aten.lift_fresh.default,)


class _Recorder(Protocol):
    """The recorder, as used here."""

    plain: PlainTensors

    def record_strided(
        self, of: TracedTensor, sizes: Any, strides: Any, offset: int | None = None
    ) -> Any: ...

    def record(
        self, name: str, call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any: ...


@dataclass(frozen=True)
class _ViewCall:
    """The operator that made a view. parent: its operand; result: its index among the results."""

    parent: Geometry
    call: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: int


@dataclass
class _CreatedTensor:
    """A tensor created in a step, with its views. traced: None until it is converted.

    is_of_loop: the loop has created it, and may use it after the step.
    """

    tensor: torch.Tensor
    is_of_loop: bool = False
    views: dict[Geometry, _ViewCall] = field(default_factory=dict)
    traced: TracedTensor | None = None


class CreatedTensors:
    """Plain tensors that a recorded step has created, by their storage.

    has_taken: one of them is converted.
    """

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._by_storage: dict[int, _CreatedTensor] = {}
        self.has_taken = False

    def note(self, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Record the results of an operator on plain tensors within forward."""
        for number, made in enumerate(tree_leaves(found)):
            if not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
                continue
            of = self._find(made)
            if of is not None:
                if returns_view(func) and isinstance(args[0], torch.Tensor):
                    call = _ViewCall(Geometry.of(args[0]), func, tuple(args[1:]), kwargs, number)
                    of.views.setdefault(Geometry.of(made), call)
            elif func in _NEW or not _shares_memory(made, (args, kwargs)):
                self._by_storage[_storage(made)] = _CreatedTensor(made)

    def note_of_loop(self, made: torch.Tensor, given: Sequence[Any] = ()) -> None:
        """Record a tensor that the loop has created, by a function of given arguments."""
        if made.layout is torch.strided and not _shares_memory(made, given):
            base = made if made._base is None else made._base
            self._by_storage[_storage(made)] = _CreatedTensor(base, is_of_loop=True)

    def taken_of_loop(self) -> list[tuple[Callable[[], torch.Tensor | None], TracedTensor]]:
        """Return weak references to the loop's converted tensors, with what they stand for."""
        taken = (of for of in self._by_storage.values() if self.has_taken and of.is_of_loop)
        return [(ref(of.tensor), of.traced) for of in taken if of.traced is not None]

    def take(self, target: torch.Tensor) -> bool:
        """Convert the tensor of a written target; False if the step has not created it."""
        of = self._find(target)
        if of is None or of.tensor.dtype != target.dtype or not of.tensor.is_contiguous():
            return False
        if of.traced is None:
            of.traced = self._recorder.plain.fresh(of.tensor)
            self.has_taken = True
            # reads outside of the recording must not see plausible values
            with unrecorded(), torch.no_grad():
                of.tensor.data.fill_(_placeholder_value(of.tensor.dtype))
        return True

    def has(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that the step has created, and for a view of one."""
        return self._find(tensor) is not None

    def is_taken(self, tensor: torch.Tensor) -> bool:
        """True if a plain tensor stands for a traced one."""
        if not self.has_taken or isinstance(tensor, TracedTensor):
            return False
        of = self._find(tensor)
        return of is not None and of.traced is not None

    def traced(self, tensor: torch.Tensor) -> TracedTensor:
        """Return the traced tensor that a converted one, or a view of it, stands for."""
        of = self._by_storage[_storage(tensor)]
        return self._at(of, Geometry.of(tensor))

    def resolve(self, results: Any) -> Any:
        """Replace converted tensors in forward's results by traced ones."""
        if not self.has_taken:
            return results
        return tree_map(
            lambda x: x.view_as(x) if isinstance(x, torch.Tensor) and self.is_taken(x) else x,
            results,
        )

    def _at(self, of: _CreatedTensor, geometry: Geometry) -> TracedTensor:
        """Return the view with a geometry, recorded again, since kept views change with each
        write.
        """
        assert of.traced is not None, "it was taken"
        if geometry == Geometry.of(of.tensor):
            return of.traced
        made = of.views.get(geometry)
        if made is None:
            strided: TracedTensor = self._recorder.record_strided(
                of.traced, geometry.shape, geometry.strides, geometry.offset
            )
            return strided
        arguments = (self._at(of, made.parent), *made.arguments)
        found = self._recorder.record(str(made.call), made.call, arguments, made.keywords)
        view: TracedTensor = found[made.result] if isinstance(found, list | tuple) else found
        return view

    def _find(self, tensor: torch.Tensor) -> _CreatedTensor | None:
        return self._by_storage.get(_storage(tensor)) if tensor.layout is torch.strided else None


def _storage(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _shares_memory(made: torch.Tensor, given: Any) -> bool:
    others: Sequence[Any] = tree_leaves(given)
    return any(
        isinstance(x, torch.Tensor) and x.layout is torch.strided and _storage(x) == _storage(made)
        for x in others
    )


def _placeholder_value(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 0 if dtype is torch.bool else torch.iinfo(dtype).min
