"""Flat files of token ids: a text as numbers, one after the other.

A file begins with a header of 32 bytes, little-endian: the magic `CSRUNTOK`, version (uint16),
bytes an id (uint16), vocabulary (uint32), count (uint64), zero (uint32), CRC-32 of bytes 8 to 28.
Files without one, as nanoGPT writes them, are read as bare ids.
"""

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from csrun.base.files import create_new, discard, temporary_beside
from csrun.data.errors import DataError, require
from csrun.data.formats.base import INTEGERS, Array, kind_of

MAGIC, VERSION = b"CSRUNTOK", 1
_FIELDS, _CHECKSUM = struct.Struct("<HHIQI"), struct.Struct("<I")
HEADER_BYTES = len(MAGIC) + _FIELDS.size + _CHECKSUM.size
BARE_DTYPE = "uint16"  # of files without a header


@dataclass(frozen=True)
class Header:
    """What a file says of its ids: they are below `vocabulary`, and there are `count` of them."""

    dtype: str
    vocabulary: int
    count: int

    def encode(self) -> bytes:
        """The header's bytes."""
        item_bytes = np.dtype(self.dtype).itemsize
        fields = _FIELDS.pack(VERSION, item_bytes, self.vocabulary, self.count, 0)
        return MAGIC + fields + _CHECKSUM.pack(crc32(fields))


@dataclass(frozen=True)
class Tokens:
    """Windows of a file of token ids for next-token prediction: (inputs, targets).

    Sample i are the tokens from i * stride on, and the targets are one token ahead. stride None is
    `length`: a token is an input once. dtype None is what the file's header says, uint16 where it
    has none. A file whose header tells of more ids than `vocabulary` is refused. Both arrays are
    views of one memory map: nothing is copied.
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
        """How many tokens further the next sample begins."""
        return self.length if self.stride is None else self.stride

    def arrays(self, path: Path) -> tuple[Array, ...]:
        """Inputs and targets.

        Shapes: both [samples, length], samples = (tokens - length - 1) // stride + 1
        Raises: DataError for a file that is missing, too short, cut, or not what its header says
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
        """The type of the ids, once their bytes and their range are what they should be."""
        if header is None:
            dtype = self.dtype or BARE_DTYPE
            item_bytes = np.dtype(dtype).itemsize
            rule = f"tokens of {dtype} take a multiple of {item_bytes} bytes"
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
    """The header, None when a file has none: neither its magic nor its checksum is there.

    Raises: DataError when only one of them is, or of a version or width that is not known
    """
    if len(start) < HEADER_BYTES:
        require(not start.startswith(MAGIC), str(path), "a header takes 32 bytes", len(start))
        return None
    fields, checksum = start[len(MAGIC) : -_CHECKSUM.size], start[-_CHECKSUM.size :]
    magic_is_there = start.startswith(MAGIC)
    checksum_is_right = _CHECKSUM.pack(crc32(fields)) == checksum
    if not magic_is_there and not checksum_is_right:
        return None
    if not magic_is_there or not checksum_is_right:
        raise DataError(f"{path}: its header is damaged; write the file anew from its text")
    version, item_bytes, vocabulary, count, _ = _FIELDS.unpack(fields)
    require(version == VERSION, str(path), f"its header must be of version {VERSION}", version)
    require(item_bytes in (2, 4), str(path), "an id must take 2 or 4 bytes", item_bytes)
    return Header(f"uint{8 * item_bytes}", vocabulary, count)


def write_tokens(path: str | Path, pieces: Iterable[Any], vocabulary: int) -> int:
    """Write a file of token ids, piece by piece; it is there whole or not at all.

    Shapes: each piece [n], integers in 0..vocabulary-1 -> how many ids there are
    Raises: DataError for an id that is not of the vocabulary; OSError
    """
    target = Path(path)
    require(0 < vocabulary < 1 << 32, str(target), "vocabulary must be 1 to 2**32 - 1", vocabulary)
    dtype = BARE_DTYPE if vocabulary <= 1 << 16 else "uint32"
    temporary = temporary_beside(target)
    try:
        with open(create_new(temporary), "wb") as file:
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
