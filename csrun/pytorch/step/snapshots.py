"""Snapshots of tensors, to detect changes of their numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch

from csrun.pytorch.deferred_init.tape import is_meta
from csrun.pytorch.record.equal_bits import have_equal_bits
from csrun.pytorch.record.torch_modes import unrecorded

PLAIN = (torch.Tensor, torch.nn.Parameter)


class Snapshot:
    """A tensor passed to a function, and its numbers at the call.

    name: of the model's tensor whose memory it shares; its numbers are then not compared, since the
        run's store has them.
    numbers: copy of them, if there is one.
    """

    __slots__ = ("_geometry", "_numbers", "_tensor", "_version", "name")

    def __init__(
        self, tensor: torch.Tensor, name: str | None = None, numbers: torch.Tensor | None = None
    ) -> None:
        self._tensor, self._version, self.name = tensor, tensor._version, name
        copy = tensor.detach().clone() if numbers is None else numbers
        self._numbers = None if name else copy
        self._geometry = _geometry(tensor)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor at the time of the call; for a tensor of the model, its current state."""
        return self._tensor if self._numbers is None else self._numbers

    def is_still(self, other: Any) -> bool:
        """True if a tensor is this one, or has the same numbers."""
        if type(other) not in PLAIN:
            return False
        if self._numbers is None:
            if other is self._tensor and other._version == self._version:
                return True
            start = other.untyped_storage().data_ptr()
            own = self._tensor.untyped_storage().data_ptr()
            return bool(start == own and _geometry(other) == self._geometry)
        return have_equal_bits(self._numbers, other)

    def watches(self, tensor: torch.Tensor | None) -> bool:
        """True if it contains all numbers of a tensor."""
        return self._numbers is not None and tensor is self._tensor

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Snapshot) and self.name == other.name and self.is_still(other._tensor)
        )

    __hash__ = None  # type: ignore[assignment]


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    is_dense = tensor.layout is torch.strided
    place = (tensor.stride(), tensor.storage_offset()) if is_dense else ()
    return tensor.shape, tensor.dtype, tensor.layout, *place


class Constant:
    """A tensor whose numbers are in a program, and which must not change.

    where: line that computes with it.
    numbers: as in the program.
    is_buffer: it belongs to the model, whose writes are known.

    Of a view, its base is watched, because nothing may reference the view itself.
    """

    def __init__(
        self, tensor: torch.Tensor, numbers: torch.Tensor, where: str, is_buffer: bool = False
    ) -> None:
        watched = tensor if tensor._base is None else tensor._base
        # A tensor with a weak reference cannot be swapped, as those of a model without memory are.
        self._tensor: Callable[[], torch.Tensor | None] = (
            partial(_itself, watched) if is_buffer else ref(watched)
        )
        self._view = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._numbers, self.where, self.is_buffer = numbers, where, is_buffer

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, or its base if it is a view; None if nothing references it."""
        return self._tensor()

    @property
    def is_same(self) -> bool:
        """True if its numbers are unchanged."""
        now = self._tensor()
        if now is None or is_meta(now):  # without memory it cannot be written
            return True
        with unrecorded(), torch.no_grad():  # not all writes are counted, for example by .data
            return have_equal_bits(now.as_strided(*self._view), self._numbers)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
