"""Values that csrun keeps in small files and reads back: JSON, whole, with a checksum.

The one way out and in. A file is what was written, to the last bit, or it is damaged: nothing is
ever read as something else. The checksum stands in the file as its first key, so that it is plain
JSON for everybody else; it covers what follows it.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import find, write_whole

T = TypeVar("T")

#: What msgspec raises for bytes that are no message: anybody may send any.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_HEAD = re.compile(rb'\{\s*"crc32":\s*"([0-9a-f]{8})",')


class DamagedError(CsrunError):
    """The content of a file is not what was written."""


def text_of(value: msgspec.Struct | Mapping[str, Any]) -> bytes:
    """Encode a value for a file: JSON of its fields, after their checksum.

    Raises: UsageError for a name or an argument that is no text, as the shell hands on any bytes
    """
    try:
        plain = msgspec.json.format(msgspec.json.encode(value), indent=1)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r}: must be valid UTF-8, as csrun stores it") from error
    fields = plain.removeprefix(b"{") + b"\n"
    return b'{\n "crc32": "%08x",%b' % (zlib.crc32(fields), fields)


def value_of(text: bytes, kind: type[T]) -> T:
    """The value that a file holds.

    Raises: DamagedError, with what is wrong
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
    """Write a value's file, whole or not at all, as `csrun.base.files.write_whole`."""
    write_whole(path, text_of(value), durable=durable, mode=mode)


@dataclass(frozen=True)
class OwnedValue(Generic[T]):
    """A value, and the account whose file holds it: what is written in it proves nothing."""

    value: T
    uid: int


def read(path: Path, kind: type[T], what: str, remedy: str = "remove the file") -> T:
    """The value of a file that `write` has written; messages call it `what`. Links are followed.

    Raises: FileNotFoundError; DamagedError for what is not what was written; CsrunError when it
    cannot be read, or is no regular file
    """
    return _read(path, kind, what, remedy, follow=True).value


def read_owned(
    path: Path, kind: type[T], what: str, remedy: str = "remove the file"
) -> OwnedValue[T]:
    """The same of a file in its own place: a link is not followed."""
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
