"""Protocols of file formats: indexed samples, and streamed samples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sample = tuple[Array, ...]


@runtime_checkable
class StoredRows(Protocol):
    """Samples along axis 0 of an array in a file, read on access."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, samples first."""

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the values."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, rows: Any, /) -> Array:
        """Return a sample, or the samples of an array of indices in its order."""


Column = Array | StoredRows


@runtime_checkable
class IndexedFormat(Protocol):
    """Format of files with samples in arrays."""

    def arrays(self, path: Path) -> tuple[Column, ...]:
        """Return arrays of equal length, samples along axis 0; memory-mapped if possible.

        Raises: DataError naming the file and the position in it, if it is malformed
        """


@runtime_checkable
class StreamedFormat(Protocol):
    """Format of files that can only be read from the start."""

    def samples(self, path: Path) -> Iterator[Sample]:
        """Yield the samples in order, each a tuple of arrays without a batch axis.

        Raises: DataError naming the file and the position in it, if it is malformed
        """


Format = IndexedFormat | StreamedFormat


INTEGERS = ("i", "u")
NUMBERS = ("i", "u", "f")


def kind_of(dtype: str) -> str:
    """Return NumPy's letter for the kind of a dtype (i, u, f, b, ...); '' if it is none."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return ""
