"""NumPy files: .npy, memory-mapped, and arrays of .npz by name.

Source: NumPy enhancement proposal 1, A simple file format for NumPy arrays
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Array
from csrun.data.formats.file_reading import opened

NPY_SUFFIX = ".npy"
LOCAL_HEADER_BYTES = 30  # local header of a zip archive, before name and extra field
DAMAGED = (BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error)
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Npy:
    """A .npy file, or arrays of a .npz file by `names`; () selects all, in the order of the file.

    Arrays written by np.savez are memory-mapped, too; those of np.savez_compressed are decompressed
    into memory.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(not isinstance(self.names, str), "Npy", "names must be a tuple", repr(self.names))

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """Return the arrays of the file.

        Raises: DataError for a missing or damaged file, or an unknown array
        """
        with opened(path) as file:
            if path.suffix == ".npz":
                return self._archive(path, file)
            require(not self.names, str(path), "only a .npz file has names", list(self.names))
            header = _header(str(path), file, path.stat().st_size)
            return (header.of(np.memmap(path, np.uint8, "r")),)

    def _archive(self, path: Path, file: BinaryIO) -> tuple[Array, ...]:
        try:
            with ZipFile(file) as archive:
                held = {info.filename.removesuffix(NPY_SUFFIX): info for info in archive.infolist()}
                names = self.names or tuple(held)
                mapped = np.memmap(path, np.uint8, "r")
                for name in names:
                    require(name in held, str(path), f"must hold {name}", list(held))
                return tuple(_member(path, archive, held[name], mapped) for name in names)
        except DAMAGED as error:
            raise DataError(f"{path}: not a readable .npz file: {error}") from error


@dataclass(frozen=True)
class _NpyHeader:
    """Header of a .npy file, whose values begin at byte `begin`."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: "np.dtype[Any]"
    begin: int

    @property
    def value_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def of(self, content: Array) -> Array:
        """Return the array as a view of the bytes of its file."""
        values = content[self.begin : self.begin + self.value_bytes].view(self.dtype)
        return values.reshape(self.shape, order="F" if self.fortran_order else "C")


def _header(where: str, file: BinaryIO, size: int) -> _NpyHeader:
    """Read the header of a .npy file, and check that the values fit its size."""
    try:
        version = np.lib.format.read_magic(file)
        require(version in HEADER_READERS, where, "version must be 1.0 or 2.0", version)
        header = _NpyHeader(*HEADER_READERS[version](file), begin=file.tell())
    except (ValueError, SyntaxError, TokenError) as error:
        raise DataError(f"{where}: not a readable .npy file: {error}") from error
    plain = header.dtype.itemsize > 0 and not header.dtype.hasobject
    require(plain, where, "must hold numbers", f"{header.dtype}")
    sensible = all(extent >= 0 for extent in header.shape)
    promised = header.begin + header.value_bytes if sensible else "no such"
    rule = f"shape {list(header.shape)} of {header.dtype} needs {promised} bytes"
    require(size == promised, where, rule, f"{size}; is it truncated?")
    return header


def _member(path: Path, archive: ZipFile, info: ZipInfo, mapped: Array) -> Array:
    where = f"{path}: {info.filename}"
    with archive.open(info) as file:
        header = _header(where, cast(BinaryIO, file), info.file_size)
    # Bytes stored as they are can be mapped in place.
    if info.compress_type == ZIP_STORED:
        content = mapped[_begin(info, mapped) :][: info.file_size]
    else:
        content = np.frombuffer(archive.read(info), np.uint8)
    rule = f"must have {info.file_size} bytes"
    require(len(content) == info.file_size, where, rule, len(content))
    return header.of(content)


def _begin(info: ZipInfo, mapped: Array) -> int:
    """Return the offset of a stored file in a zip archive, after header, name and extra field."""
    # Lengths of the local header: its extra field may differ from the central directory's.
    name = info.header_offset + LOCAL_HEADER_BYTES
    name_bytes, extra_bytes = mapped[name - 4 : name].view("<u2").tolist()
    return name + int(name_bytes) + int(extra_bytes)
