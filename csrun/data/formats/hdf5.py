"""HDF5 files: data sets whose rows are read on access."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Array
from csrun.data.formats.file_reading import needed

DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hdf5:
    """Data sets of an HDF5 file by name (`train/images`); () selects all at the root, in its order.

    A batch reads only its own rows, sorted, so that each chunk is decompressed once.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(not isinstance(self.names, str), "Hdf5", "names must be a tuple", repr(self.names))

    def arrays(self, path: Path) -> "tuple[Hdf5Rows, ...]":
        """Return the rows of each data set.

        Raises: DataError for a missing or damaged file, or an unknown data set
        """
        with _named(path), _opened(path) as file:
            names = self.names or _at_the_root(file)
            require(bool(names), str(path), "must contain a data set at its root", list(file))
            return tuple(_rows(path, file, name) for name in names)


class Hdf5Rows:
    """Rows of a data set; each process that reads them opens the file itself."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype
        self._path = path
        self._name = name
        self._held: Any = None
        self._process = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """Return a row, or the rows of indices in any order, also repeated."""
        numbers, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        inside = not numbers.size or (numbers[0] >= 0 and numbers[-1] < len(self))
        if not inside:
            raise IndexError(f"{self._path}: {self._name} has rows 0..{len(self) - 1}, got {rows}")
        with _named(f"{self._path}: {self._name}"):
            found = np.concatenate([self._span(group) for group in self._groups(numbers)])
        return found[places.reshape(np.shape(rows))]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # NumPy would ask for the rows one by one: a file read whole without anybody's wish.
        raise TypeError(f"{self._path}: {self._name} must be read by rows, not as a whole")

    def _groups(self, numbers: Numbers) -> list[Numbers]:
        """Group sorted indices by read: those in one chunk, or consecutive ones without chunks.

        A selection by h5py over many chunks would visit every chunk in between.
        """
        chunks = self._data().chunks
        near = numbers // chunks[0] if chunks else numbers - np.arange(len(numbers))
        return np.split(numbers, np.flatnonzero(np.diff(near)) + 1)

    def _span(self, group: Numbers) -> Array:
        """Return the rows of a group; all rows from its first to its last are read."""
        if not group.size:
            return np.empty((0, *self.shape[1:]), self.dtype)
        span: Array = self._data()[group[0] : group[-1] + 1]
        return span if len(span) == len(group) else span[group - group[0]]

    def _data(self) -> Any:
        # h5py's handles must not be shared with a forked process.
        if self._process != os.getpid():
            self._held = _opened(self._path)[self._name]
            self._process = os.getpid()
        return self._held


def _opened(path: Path) -> Any:
    return needed("h5py", "Hdf5", "hdf5").File(path, "r")


@contextmanager
def _named(where: object) -> Iterator[None]:
    """Raise errors of h5py for a damaged file as DataError with its name."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{where}: not a readable HDF5 file: {error}") from error


def _at_the_root(file: Any) -> tuple[str, ...]:
    return tuple(name for name, item in file.items() if _is_data_set(item))


def _is_data_set(item: Any) -> bool:
    """True for a data set; groups and named types have no attribute `chunks`."""
    return hasattr(item, "chunks")


def _rows(path: Path, file: Any, name: str) -> Hdf5Rows:
    where = f"{path}: {name}"
    require(name in file, str(path), f"must hold {name}", list(file))
    data = file[name]
    require(_is_data_set(data), where, "must be a data set", type(data).__name__)
    require(bool(data.shape), where, "samples need a first axis", f"shape {data.shape}")
    require(data.dtype.kind in "biufc", where, "must hold numbers", data.dtype)
    return Hdf5Rows(path, name, data.shape, data.dtype)
