"""Values stored in small files: JSON with a checksum.

All of csrun's JSON files are written and read here. The first key is a checksum over the rest of
the file, which remains plain JSON for other readers. A file that differs in any bit from what was
written is reported as damaged.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import find, write_atomic

T = TypeVar("T")

#: Exceptions of msgspec for bytes that are not a valid message.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_HEAD = re.compile(rb'\{\s*"crc32":\s*"([0-9a-f]{8})",')


class DamagedError(CsrunError):
    """The content of a file is not what was written."""


def text_of(value: msgspec.Struct | Mapping[str, Any]) -> bytes:
    """Encode a value as JSON, with the checksum as first key.

    Raises: UsageError for a string with bytes that are not valid Unicode, as a shell may pass them
    """
    try:
        plain = msgspec.json.format(msgspec.json.encode(value), indent=1)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r}: must be valid UTF-8, as csrun stores it") from error
    fields = plain.removeprefix(b"{") + b"\n"
    return b'{\n "crc32": "%08x",%b' % (zlib.crc32(fields), fields)


def value_of(text: bytes, kind: type[T]) -> T:
    """Decode the value of a file.

    Raises: DamagedError, with the reason
    """
    head = _HEAD.match(text)
    if head is None:
        raise DamagedError("no checksum at its start")
    fields = text[head.end() :]
    if zlib.crc32(fields) != int(head[1], 16):
        raise DamagedError(f"its checksum is {zlib.crc32(fields):08x}, not {head[1].decode()}")
    try:
        return msgspec.json.decode(b"{" + fields, type=kind)
    except UNREADABLE as error:
        raise DamagedError(str(error)) from error


def write(
    path: Path, value: msgspec.Struct, *, durable: bool = True, mode: int | None = None
) -> None:
    """Write a value's file atomically, as `csrun.base.files.write_atomic`."""
    write_atomic(path, text_of(value), durable=durable, mode=mode)


@dataclass(frozen=True)
class OwnedValue(Generic[T]):
    """Value with the account that owns its file; another account's content is not trusted."""

    value: T
    uid: int


def read(path: Path, kind: type[T], what: str, remedy: str = "remove the file") -> T:
    """Read the value of a file written by `write`; `what` names it in messages. Links are followed.

    Raises: FileNotFoundError; DamagedError if the content was changed; CsrunError if the file
    cannot be read, or is not a regular file
    """
    return _read(path, kind, what, remedy, follow=True).value


def read_owned(
    path: Path, kind: type[T], what: str, remedy: str = "remove the file"
) -> OwnedValue[T]:
    """Read a value and its owner as `read`, without following a link."""
    return _read(path, kind, what, remedy, follow=False)


def _read(path: Path, kind: type[T], what: str, remedy: str, *, follow: bool) -> OwnedValue[T]:
    try:
        found = find(path, follow=follow)
        return OwnedValue(value_of(found.data, kind), found.uid)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CsrunError(f"{path}: {what} cannot be read: {error.strerror}; {remedy}") from error
    except DamagedError as error:
        raise DamagedError(f"{path}: {what} is damaged: {error}; {remedy}") from error
