"""Flat files of token ids.

A file begins with a header of 32 bytes, little-endian: the magic `CSRUNTOK`, version (uint16),
bytes per id (uint16), vocabulary (uint32), count (uint64), zero (uint32), CRC-32 of bytes 8 to 28.
Files without a header, as written by nanoGPT, are read as bare ids.
"""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from csrun.base.files import create_new, discard, temporary_name
from csrun.data.errors import DataError, require
from csrun.data.formats.base import INTEGERS, Array, kind_of

MAGIC, VERSION = b"CSRUNTOK", 1
_FIELDS, _CHECKSUM = struct.Struct("<HHIQI"), struct.Struct("<I")
HEADER_BYTES = len(MAGIC) + _FIELDS.size + _CHECKSUM.size
BARE_DTYPE = "uint16"  # of a file without a header


@dataclass(frozen=True)
class Header:
    """Header of a file of `count` ids below `vocabulary`."""

    dtype: str
    vocabulary: int
    count: int

    def encode(self) -> bytes:
        """Encode the header."""
        item_bytes = np.dtype(self.dtype).itemsize
        fields = _FIELDS.pack(VERSION, item_bytes, self.vocabulary, self.count, 0)
        return MAGIC + fields + _CHECKSUM.pack(crc32(fields))


@dataclass(frozen=True)
class Tokens:
    """Windows of a file of token ids for next-token prediction: (inputs, targets).

    Sample i begins at token i * stride; targets are shifted by one token. stride defaults to
    `length`, so that each token is an input once. dtype defaults to that of the header, or uint16
    without one. A file whose header has more ids than `vocabulary` is refused. Both arrays are
    views of one memory map.
    """

    length: int
    dtype: str | None = None
    stride: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        require(self.length > 0, "Tokens", "length must be positive", self.length)
        require(self.step > 0, "Tokens", "stride must be positive", self.stride)
        known = self.dtype is None or kind_of(self.dtype) in INTEGERS
        require(known, "Tokens", "dtype must be of integers", self.dtype)

    @property
    def step(self) -> int:
        """Number of tokens between the starts of samples."""
        return self.length if self.stride is None else self.stride

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """Return inputs and targets.

        Shapes: both [samples, length], samples = (tokens - length - 1) // stride + 1
        Raises: DataError for a missing, short or truncated file, or one that does not match its
        header
        """
        tokens = self._mapped(path)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self.length + 1)[:: self.step]
        return windows[:, :-1], windows[:, 1:]

    def _mapped(self, path: Path) -> Array:
        try:
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                header = _header_in(file.read(HEADER_BYTES), path)
                dtype = self._dtype_of(header, size_bytes, path)
                first_byte = HEADER_BYTES if header else 0
                count = (size_bytes - first_byte) // np.dtype(dtype).itemsize
                rule = f"a sample of length {self.length} needs {self.length + 1} tokens"
                require(count > self.length, str(path), rule, count)
                return np.memmap(file, dtype, "r", first_byte)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened: {error.strerror}") from error

    def _dtype_of(self, header: Header | None, size_bytes: int, path: Path) -> str:
        """Return the dtype of the ids, after checking their size and range."""
        if header is None:
            dtype = self.dtype or BARE_DTYPE
            item_bytes = np.dtype(dtype).itemsize
            rule = f"a file of {dtype} tokens must have a multiple of {item_bytes} bytes"
            require(size_bytes % item_bytes == 0, str(path), rule, size_bytes)
            return dtype
        agrees = self.dtype is None or np.dtype(self.dtype) == np.dtype(header.dtype)
        require(agrees, str(path), f"its header says {header.dtype}", self.dtype)
        expected = HEADER_BYTES + header.count * np.dtype(header.dtype).itemsize
        rule = f"{header.count:,} tokens and the header take {expected:,} bytes"
        require(size_bytes == expected, str(path), rule, f"{size_bytes:,}")
        fits = self.vocabulary is None or header.vocabulary <= self.vocabulary
        rule = f"ids must be below the model's vocabulary of {self.vocabulary}"
        require(fits, str(path), rule, f"a file for a vocabulary of {header.vocabulary}")
        return header.dtype


def _header_in(start: bytes, path: Path) -> Header | None:
    """Read the header; None if the file has neither its magic nor its checksum.

    Raises: DataError if it has only one of them, or an unknown version or width
    """
    if len(start) < HEADER_BYTES:
        require(not start.startswith(MAGIC), str(path), "a header must have 32 bytes", len(start))
        return None
    fields, checksum = start[len(MAGIC) : -_CHECKSUM.size], start[-_CHECKSUM.size :]
    magic_is_there = start.startswith(MAGIC)
    checksum_is_right = _CHECKSUM.pack(crc32(fields)) == checksum
    # A file without header has neither, except by rare chance: only one of both means damage.
    if not magic_is_there and not checksum_is_right:
        return None
    if not magic_is_there or not checksum_is_right:
        raise DataError(f"{path}: its header is damaged; write the file again from its text")
    version, item_bytes, vocabulary, count, _ = _FIELDS.unpack(fields)
    require(version == VERSION, str(path), f"its header must be of version {VERSION}", version)
    require(item_bytes in (2, 4), str(path), "an id must take 2 or 4 bytes", item_bytes)
    return Header(f"uint{8 * item_bytes}", vocabulary, count)


def write_tokens(path: str | Path, pieces: Iterable[Any], vocabulary: int) -> int:
    """Write a file of token ids atomically, and return their number.

    Shapes: each piece [n], integers in 0..vocabulary-1
    Raises: DataError for an id outside the vocabulary; OSError
    """
    target = Path(path)
    require(0 < vocabulary < 1 << 32, str(target), "vocabulary must be 1 to 2**32 - 1", vocabulary)
    dtype = BARE_DTYPE if vocabulary <= 1 << 16 else "uint32"
    temporary = temporary_name(target)
    try:
        with open(create_new(temporary), "wb") as file:
            # The count is only known after the last piece, so the header is filled in at the end.
            file.write(bytes(HEADER_BYTES))
            count = 0
            for piece in pieces:
                count += _append(file, np.asarray(piece), dtype, vocabulary, target, count)
            file.seek(0)
            file.write(Header(dtype, vocabulary, count).encode())
        temporary.replace(target)
    finally:
        discard(temporary)
    return count


def _append(
    file: BinaryIO, ids: Array, dtype: str, vocabulary: int, path: Path, before: int
) -> int:
    if not ids.size:
        return 0
    require(ids.dtype.kind in INTEGERS, str(path), "token ids must be integers", ids.dtype)
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if len(wrong):
        at = int(wrong[0])
        rule = f"token {before + at} must be in 0..{vocabulary - 1}"
        raise DataError(f"{path}: {rule}, got {ids.flat[at]}")
    file.write(np.ascontiguousarray(ids, dtype).data)
    return ids.size
