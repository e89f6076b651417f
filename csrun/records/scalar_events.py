"""Reader of scalars in TensorBoard's event files as they grow; of a long file it reads only the
end.

tensorboardX has no reader, and importing its messages takes longer than reading a run.

Source: TensorFlow, lib/io/record_writer.h: length, its checksum, data, their checksum;
core/util/event.proto and core/framework/summary.proto: Event (wall_time 1, step 2, summary 5),
Summary (value 1), Value (tag 1, simple_value 2)
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csrun.base.files import open_regular

PATTERN = "events.out.tfevents.*"
_HEAD = struct.Struct("<QI")  # length and its checksum
_CHECKSUM_BYTES = 4
_READ_BYTES = 1 << 22
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected
_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True)
class ScalarEvent:
    """A value at a step. Units: wall_s in seconds since the epoch."""

    step: int
    wall_s: float
    tag: str
    value: float


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a folder, oldest first by the time in their names."""
    return sorted(folder.glob(PATTERN), key=lambda path: (begun_s(path), path.name))


def begun_s(path: Path) -> int:
    """Return the start time of an event file, in seconds since the epoch; 0 if its name has
    none.
    """
    word = path.name.split(".")[3]
    return int(word) if word.isdecimal() else 0


class EventTail:
    """One event file, read as it grows; most_bytes: maximum read of its existing data.

    Reading ends at a damaged record.
    """

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._offset = 0
        self._is_first = True

    def read(self) -> list[ScalarEvent]:
        """Return the scalars added since the last call; none if the file cannot be read."""
        found: list[ScalarEvent] = []
        with suppress(OSError):
            descriptor = open_regular(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                self._skip(os.fstat(file.fileno()).st_size)
                file.seek(self._offset)
                while data := file.read(_READ_BYTES):
                    if not (taken := self._take(data, found)):
                        break
                    self._offset += taken
                    file.seek(self._offset)
        return found

    def _skip(self, size: int) -> None:
        if self._is_first and self._most_bytes is not None:
            self._offset = max(0, size - self._most_bytes)

    def _take(self, data: bytes, found: list[ScalarEvent]) -> int:
        """Decode the complete records at the start of some data; return their size in bytes."""
        at = 0
        if self._is_first:
            at, self._is_first = _first_record(data) if self._offset else 0, False
        while at + _HEAD.size <= len(data) and _is_head(data, at):
            begin = at + _HEAD.size
            end = begin + _HEAD.unpack_from(data, at)[0]
            if end + _CHECKSUM_BYTES > len(data):
                break
            with suppress(ValueError, IndexError, struct.error):
                found.extend(_scalars(data[begin:end]))
            at = end + _CHECKSUM_BYTES
        return at


def _first_record(data: bytes) -> int:
    """Return the offset of the first record in data that start anywhere; their length if there is
    none.
    """
    offsets = range(len(data) - _HEAD.size + 1)
    return next((at for at in offsets if _is_head(data, at)), len(data))


def _is_head(data: bytes, at: int) -> bool:
    if data[at + 4 : at + 8] != bytes(4):  # no record has 4 GB: avoids most checksums
        return False
    return bool(_HEAD.unpack_from(data, at)[1] == _masked_crc(data[at : at + 8]))


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _scalars(event: bytes) -> Iterator[ScalarEvent]:
    step, wall_s = 0, 0.0
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes):
            (wall_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for tag, scalar in _values(value):
                yield ScalarEvent(step, wall_s, tag, scalar)


def _values(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        fields = dict(_fields(value))
        tag, scalar = fields.get(1), fields.get(2)
        if isinstance(tag, bytes) and isinstance(scalar, bytes) and len(scalar) == 4:
            yield tag.decode(errors="replace"), struct.unpack("<f", scalar)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Decode the fields of a message by number: an integer, or the bytes of any other type.

    Source: Protocol Buffers, "Encoding"
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                number, at = _varint(message, at)
                yield key >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"wire type {other}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return number, at
