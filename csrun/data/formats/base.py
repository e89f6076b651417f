"""The two kinds of file format: samples that can be indexed, and samples that come in turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

Array = npt.NDArray[Any]
Sample = tuple[Array, ...]


@runtime_checkable
class IndexedFormat(Protocol):
    """A file whose samples lie in arrays."""

    def arrays(self, path: Path) -> tuple[Array, ...]:
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
