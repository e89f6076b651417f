"""TFRecord files: records of bytes with checksums of length and data.

Source: TensorFlow, tensorflow/core/lib/io/record_writer.h
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Sample
from csrun.data.formats.file_reading import needed, opened, read_up_to

LENGTH_PART = "length"
GZIP = "gzip"
NONE = "none"
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
MASK_DELTA = 0xA282EAD8

Checksum = Callable[[bytes], int]


@dataclass(frozen=True)
class TFRecord:
    """Records of a TFRecord file as uint8 vectors; use `bytes(record)` in a map.

    compression: gzip or none; None means gzip for the suffix .gz.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        require_compression("TFRecord", self.compression)

    def samples(self, path: Path) -> Iterator[Sample]:
        """Yield a uint8 vector per record.

        Raises: DataError naming file and byte offset of a damaged or truncated record
        """
        for record in records(path, self.compression):
            yield (np.frombuffer(record.content, np.uint8),)


@dataclass(frozen=True, slots=True)
class Record:
    """Record, its index in the file, and its byte offset."""

    number: int
    offset: int
    content: bytes


def records(path: Path, compression: str | None) -> Iterator[Record]:
    """Yield the records of a file, checksums verified; offsets are in the decompressed file.

    Raises: DataError naming file and byte offset of a damaged or truncated record
    """
    checksum: Checksum = needed("google_crc32c", "TFRecord", "tfrecord").value
    number, offset = 0, 0
    with opened(path, None if compression is None else compression == GZIP) as file:
        while head := read_up_to(file, LENGTH.size + CHECKSUM.size):
            where = f"{path}: record {number} at byte {offset}"
            length = _length(where, head, checksum)
            content = _content(where, file, length, checksum)
            yield Record(number, offset, content)
            number += 1
            offset += len(head) + length + CHECKSUM.size


def require_compression(form: str, compression: str | None) -> None:
    """Refuse an unsupported compression."""
    known = compression in (None, GZIP, NONE)
    require(known, form, f"compression must be {GZIP}, {NONE} or None", compression)


def masked(checksum: int) -> int:
    """Mask a CRC-32C as the format does, so that a CRC of data with CRCs stays well distributed."""
    return ((checksum >> 15 | checksum << 17) + MASK_DELTA) & 0xFFFFFFFF


def _length(where: str, head: bytes, checksum: Checksum) -> int:
    wanted = LENGTH.size + CHECKSUM.size
    require(
        len(head) == wanted,
        where,
        f"its header must have {wanted} bytes",
        f"{len(head)}; the file is truncated",
    )
    packed, (stored,) = head[: LENGTH.size], CHECKSUM.unpack(head[LENGTH.size :])
    _verify(where, LENGTH_PART, packed, stored, checksum)
    (length,) = LENGTH.unpack(packed)
    return int(length)


def _content(where: str, file: BinaryIO, length: int, checksum: Checksum) -> bytes:
    content = read_up_to(file, length)
    tail = file.read(CHECKSUM.size) if len(content) == length else b""
    missing = length + CHECKSUM.size - len(content) - len(tail)
    rule = f"must have {length} bytes and a checksum"
    require(not missing, where, rule, f"{missing} bytes less; the file is truncated")
    _verify(where, "data", content, CHECKSUM.unpack(tail)[0], checksum)
    return content


def _verify(where: str, part: str, content: bytes, stored: int, checksum: Checksum) -> None:
    found = masked(checksum(content))
    if found != stored:
        other = ", compressed (compression='gzip') or not a TFRecord file"
        raise DataError(
            f"{where}: the checksum of its {part} must be 0x{stored:08x}, got 0x{found:08x}: the "
            f"file is damaged{other if part == LENGTH_PART else ''}"
        )
