"""Geometry of traced tensors: shape, strides, offset and type, without PyTorch's fake tensors.

A fake tensor takes some 200 us to create and a fake operator ten times as long. Since steps repeat,
results of an operator are cached by the geometries of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from csrun.pytorch.record.torch_modes import unrecorded

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

MOST_KNOWN = 20_000  # cached operator calls
_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False, slots=True)
class Geometry:
    """Shape, strides, offset and type of a dense CPU tensor; equal geometries are one object.

    It answers the queries that a fake tensor would.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    layout: ClassVar[torch.layout] = torch.strided
    device: ClassVar[torch.device] = _CPU

    @staticmethod
    def of(tensor: torch.Tensor, offset: int | None = None) -> Geometry:
        """Return the geometry of a dense tensor; offset: used instead of its own."""
        place = int(tensor.storage_offset()) if offset is None else offset
        return _one_object(tuple(tensor.shape), tuple(tensor.stride()), place, tensor.dtype)

    def size(self) -> tuple[int, ...]:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def storage_offset(self) -> int:
        return self.offset

    def fake(self, mode: FakeTensorMode) -> FakeTensor:
        """Return a fake tensor of this geometry."""
        with unrecorded(), mode:
            last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
            memory = torch.empty(max(self.offset + last + 1, 0), dtype=self.dtype)
            made: Any = memory.as_strided(self.shape, self.strides, self.offset)
            found: FakeTensor = made
            return found


@cache
def _one_object(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: torch.dtype
) -> Geometry:
    return Geometry(shape, strides, offset, dtype)


class Results(NamedTuple):
    """Geometries of an operator's results. kind: type of the sequence that holds several."""

    each: tuple[Geometry | None, ...]
    kind: Callable[[Any], Any] | None


class CachedResults:
    """Results of operators by the geometries and numbers of their arguments."""

    def __init__(self) -> None:
        self._known: dict[Any, Results] = {}

    def key(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], geometry: Any
    ) -> Any | None:
        """Return the key of a call; None if its results cannot be cached.

        geometry: returns the geometry of an argument.
        """
        if isinstance(call, partial):
            call = call.func, *call.args
        elif not isinstance(call, FunctionType | torch._ops.OpOverload):
            return None
        given = _frozen(args, geometry), _frozen(tuple(kwargs.items()), geometry)
        key = call, *given, torch.get_default_dtype()  # of the quotient of two integers
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def get(self, key: Any | None) -> Results | None:
        """Return the results of a call, if they are known."""
        return None if key is None else self._known.get(key)

    def keep(self, key: Any | None, found: Any) -> Results | None:
        """Cache and return the results of a call; None if they cannot be cached."""
        several = isinstance(found, tuple | list)
        each = list(found) if several else [found]
        if key is None or not all(map(_is_dense, each)):
            return None
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        geometries = tuple(None if x is None else Geometry.of(x) for x in each)
        self._known[key] = made = Results(geometries, type(found) if several else None)
        return made


def _is_dense(found: Any) -> bool:
    if found is None:
        return True
    is_plain = isinstance(found, torch.Tensor) and found.layout is torch.strided
    return is_plain and found.device == _CPU


def _frozen(tree: Any, geometry: Callable[[Any], Any]) -> Any:
    if type(tree) in (tuple, list):
        return type(tree), *[_frozen(each, geometry) for each in tree]
    found = geometry(tree)
    return (type(found), found) if type(found) in (bool, int, float) else found
