"""The two kinds of file format: samples that can be indexed, and samples that come in turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sample = tuple[Array, ...]


@runtime_checkable
class StoredRows(Protocol):
    """Samples along a first axis which lie in a file, and are read when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents; the first one counts the samples."""

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of the values."""

    def __len__(self) -> int:
        """How many samples there are."""

    def __getitem__(self, rows: Any, /) -> Array:
        """The sample of a number, or the samples of an array of numbers, in its order."""


Column = Array | StoredRows


@runtime_checkable
class IndexedFormat(Protocol):
    """A file whose samples lie in arrays."""

    def arrays(self, path: Path) -> tuple[Column, ...]:
        """Equally long arrays, sample by sample along the first axis; memory-mapped if possible.

        Raises: DataError naming the file, and the place in it, when it is not what it should be
        """


@runtime_checkable
class StreamedFormat(Protocol):
    """A file that can only be read from its start."""

    def samples(self, path: Path) -> Iterator[Sample]:
        """Its samples in order, each a tuple of arrays without a batch axis.

        Raises: DataError naming the file, and the place in it, when it is not what it should be
        """


Format = IndexedFormat | StreamedFormat


INTEGERS = ("i", "u")
NUMBERS = ("i", "u", "f")


def kind_of(dtype: str) -> str:
    """NumPy's letter for the kind of a dtype (i, u, f, b, ...), empty for what is none."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return ""
