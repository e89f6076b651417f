"""Tensors of a store that the chief has not mapped, accessed in place as arrays."""

import os
from collections.abc import Callable
from math import prod
from typing import Any, Protocol, cast

import numpy as np

from csrun.base.errors import CsrunError
from csrun.executable import Plan, state_layout
from csrun.executable.arrays import Array
from csrun.executable.shards import Own
from csrun.executable.store_places import TensorPlace, numbers_layout
from csrun.runtime.store.pages import disk_failed, sync_of
from csrun.runtime.store.residency import Residency

_Move = Callable[[int, list[memoryview], int], int]


class Port(Protocol):
    """Access to the bytes of a store."""

    def read(self, offset_bytes: int, array: Array) -> None:
        """Fill an array with the bytes at an offset."""

    def write(self, offset_bytes: int, array: Array) -> None:
        """Write the bytes of an array at an offset."""


class StoredTensor:
    """Tensor of the state, read and written by the chief as an array, piece by piece.

    `np.asarray` reads it; `t[...] = values` writes it; a flat one has slices `t[a:b]`.
    """

    def __init__(self, port: Port, place: TensorPlace) -> None:
        self._port = port
        self._place = place
        self.shape = place.shape
        self.dtype = np.dtype(place.dtype)
        self.size = prod(place.shape)
        self.nbytes = place.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = np.empty(self._place.stored_shape, self.dtype)
        self._port.read(self._place.offset_bytes, array)
        array = array.T if self._place.is_transposed else array
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, part: slice) -> "StoredTensor":
        """Return a part of a flat tensor."""
        start, stop, _ = part.indices(len(self))
        offset_bytes = self._place.offset_bytes + start * self.dtype.itemsize
        return self._at(offset_bytes, stop - start)

    def __setitem__(self, every: Any, values: Any) -> None:
        if every is not ...:
            raise TypeError("a tensor in a store must be written as a whole: tensor[...] = values")
        whole = np.broadcast_to(values, self.shape)
        whole = whole.T if self._place.is_transposed else whole
        # The store has one contiguous block per tensor, and the port writes bytes.
        self._port.write(self._place.offset_bytes, np.ascontiguousarray(whole, self.dtype))

    def reshape(self, _: int) -> "StoredTensor | Array":
        """Reshape to a flat tensor; a transposed one is copied to memory."""
        if self._place.is_transposed:
            return np.asarray(self).reshape(-1)
        return self._at(self._place.offset_bytes, self.size)

    def _at(self, offset_bytes: int, size: int) -> "StoredTensor":
        return StoredTensor(self._port, TensorPlace(offset_bytes, (size,), self._place.dtype))


def stored_state(plan: Plan, port: Port, own: Own = None) -> dict[str, Array]:
    """Return the tensors of a checkpoint, as `state_views` for a mapped store."""
    return {
        name: cast(Array, StoredTensor(port, place))
        for name, place in state_layout(plan, own).items()
    }


def stored_numbers(plan: Plan, port: Port) -> Array | None:
    """Return the numbers of the steps, as `numbers_view` for a mapped store."""
    place = numbers_layout(plan)
    return None if place is None else cast(Array, StoredTensor(port, place))


class FilePort:
    """Store on disk; non-resident bytes are evicted after a read, and written back after a write.

    memory, file: the caller's descriptors, open as long as this is used.
    """

    def __init__(self, memory: int, file: int, residency: Residency) -> None:
        self._memory, self._file = memory, file
        self._residency = residency
        self._sync = sync_of(file)

    def read(self, offset_bytes: int, array: Array) -> None:
        self._move(os.preadv, offset_bytes, array)

    def write(self, offset_bytes: int, array: Array) -> None:
        self._move(os.pwritev, offset_bytes, array)

    def _move(self, move: _Move, offset_bytes: int, array: Array) -> None:
        data = array.reshape(-1).view(np.uint8).data
        used = range(offset_bytes, offset_bytes + len(data))
        try:
            for part, leaves in self._residency.pieces(used):
                start = part.start - offset_bytes
                descriptor = self._file if leaves else self._memory
                _move_all(move, descriptor, data[start : start + len(part)], part.start)
                if leaves:
                    self._evict(part)
        except OSError as error:  # otherwise the error would name the checkpoint's file
            raise disk_failed(error) from error

    def _evict(self, part: range) -> None:
        self._sync(part)  # a sync may report a failed write of MemoryX
        os.posix_fadvise(self._file, part.start, len(part), os.POSIX_FADV_DONTNEED)


def _move_all(move: _Move, descriptor: int, data: memoryview, at: int) -> None:
    while data:
        count = move(descriptor, [data], at)
        if not count:
            raise CsrunError("the weight store's file was truncated")
        data, at = data[count:], at + count
