"""Tensors of the loop's own, as a call got them: whether they still have the same numbers."""

from typing import Any

import torch


class Given:
    """A tensor that a function was called on, and its numbers then.

    name: of the tensor of the model in whose memory it lies; its numbers are the run's, and are not
    compared.
    """

    __slots__ = ("_geometry", "_name", "_numbers", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor, name: str | None = None) -> None:
        self._tensor, self._version, self._name = tensor, tensor._version, name
        self._numbers = None if name else tensor.detach().clone()
        self._geometry = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor itself; as it was, where its numbers count."""
        return self._tensor if self._numbers is None else self._numbers

    def is_still(self, other: Any) -> bool:
        """Whether a tensor is this one, or has the same numbers."""
        if other is self._tensor and other._version == self._version:
            return True
        if type(other) is not torch.Tensor:
            return False
        if self._numbers is None:
            start = other.untyped_storage().data_ptr()
            geometry = other.shape, other.stride(), other.storage_offset(), other.dtype
            own = self._tensor.untyped_storage().data_ptr()
            return bool(start == own and geometry == self._geometry)
        if self._numbers.dtype != other.dtype:
            return False
        return bool(torch.equal(self._numbers, other))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Given) and self._name == other._name and self.is_still(other._tensor)
        )

    __hash__ = None  # type: ignore[assignment]
