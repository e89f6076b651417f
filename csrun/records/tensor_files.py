"""safetensors files, written and read in pieces, with the memory of one piece.

Source: the safetensors format, github.com/huggingface/safetensors, README, section Format
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from csrun.base import files

Array = npt.NDArray[Any]

CHUNK_BYTES = 8 << 20  # written and summed at once
_CODES = {
    "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
#: How the bytes of a type are read; BF16, which NumPy lacks, is the upper half of a float32.
_READ_AS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


class TensorFileError(Exception):
    """Invalid file of tensors."""


@dataclass(frozen=True)
class Blocks:
    """Tensor that is created while it is written: `make` yields its rows, a few at a time.

    check: called with the checksum of all of them; raises if it is wrong.
    """

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    make: Callable[[], Iterator[Array]]
    check: Callable[[int], None] = lambda crc32: None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def write(
    path: Path,
    tensors: Mapping[str, Array | Blocks],
    metadata: Mapping[str, str] | None = None,
    copied: Callable[[str], None] = lambda name: None,
    order: Iterable[str] | None = None,
) -> dict[str, int]:
    """Write a new file, flushed to the disk; return the CRC-32 checksum of each tensor.

    copied: called with each tensor, by name, that may change from then on.
    order: order in which tensors are copied; it does not affect the file.

    Raises: OSError
    """
    checksums = dict.fromkeys(tensors, 0)
    header = _header(tensors, metadata)
    offsets = dict(zip(tensors, _offsets(tensors.values(), len(header)), strict=True))
    with FileIO(files.create_new(path), "wb") as file:
        _write_all(file, memoryview(header))
        for name in order or tensors:
            tensor = tensors[name]
            file.seek(offsets[name])
            for part in _parts(tensor):
                _write_all(file, part)
                checksums[name] = zlib.crc32(part, checksums[name])
            if isinstance(tensor, Blocks):
                tensor.check(checksums[name])
            copied(name)
        os.fsync(file.fileno())
    return checksums


def bytes_of(array: Array) -> memoryview:
    """Return an array's memory, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _parts(tensor: Array | Blocks) -> Iterator[memoryview]:
    for block in tensor.make() if isinstance(tensor, Blocks) else (tensor,):
        memory = bytes_of(block)
        for start in range(0, len(memory), CHUNK_BYTES):
            yield memory[start : start + CHUNK_BYTES]


def _offsets(tensors: Iterable[Array | Blocks], first: int) -> Iterator[int]:
    """Return the offset of each tensor, without gaps."""
    for tensor in tensors:
        yield first
        first += tensor.nbytes


def _header(tensors: Mapping[str, Array | Blocks], metadata: Mapping[str, str] | None) -> bytes:
    """Return the header of a file: the length of the JSON, and the JSON, padded to 8 bytes."""
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for (name, tensor), offset in zip(tensors.items(), _offsets(tensors.values(), 0), strict=True):
        head[name] = {
            "dtype": _CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
    text = json.dumps(head, separators=(",", ":")).encode()
    # Tensors start at a multiple of 8, so that a mapped file has aligned arrays.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_all(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


@dataclass(frozen=True)
class Stored:
    """Tensor in a file: its offset, type and shape."""

    path: Path
    start: int
    shape: tuple[int, ...]
    code: str  # of the format: F32, BF16, …

    def read(self) -> "StoredValues":
        """Read all of its bytes by read(2): a mapped file would count as this process's memory.

        Raises: TensorFileError for a file that has become shorter; OSError
        """
        dtype = np.dtype(_READ_AS[self.code])
        with open(self.path, "rb") as file:
            file.seek(self.start)
            values = np.fromfile(file, dtype, prod(self.shape))
        if values.size != prod(self.shape):
            raise TensorFileError(f"{self.path}: file was truncated")
        return StoredValues(values.reshape(self.shape), self.code)

    def within(self, file: Array) -> Array:
        """Return the tensor as a view of the bytes of its file."""
        dtype = np.dtype(_READ_AS[self.code])
        end = self.start + prod(self.shape) * dtype.itemsize
        return file[self.start : end].view(dtype).reshape(self.shape)


@dataclass(frozen=True)
class StoredValues:
    """Values of a tensor in their stored type."""

    raw: Array
    code: str

    def block(self, where: Any, dtype: "np.dtype[Any]") -> Array:
        """Return a part of them, by a NumPy index, in another type."""
        part: Array = self.raw[where]
        if self.code == "BF16":
            # bfloat16 is the upper half of a float32.
            part = (part.astype(np.uint32) << 16).view(np.float32)
        return part.astype(dtype, copy=False)


def tensors_in(path: Path) -> dict[str, Stored]:
    """Return the tensors of a file, by name.

    Raises: TensorFileError for an invalid safetensors file, or tensors of an unsupported type;
    OSError
    """
    try:
        with safe_open(path, framework="numpy"):  # it validates the header, and the file's length
            pass
    except SafetensorError as error:
        raise TensorFileError(f"{path}: not a safetensors file: {error}") from error
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
    head.pop("__metadata__", None)
    if other := sorted({entry["dtype"] for entry in head.values()} - set(_READ_AS)):
        raise TensorFileError(
            f"{path}: unsupported tensor types {', '.join(other)}: save them as float16, "
            "bfloat16, float32 or float64"
        )
    return {
        name: Stored(
            path, 8 + length + entry["data_offsets"][0], tuple(entry["shape"]), entry["dtype"]
        )
        for name, entry in head.items()
    }
