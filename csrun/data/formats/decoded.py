"""Cache of decoded files, as arrays that tasks memory-map, in the account's cache folder.

A missing or damaged entry, or one that cannot be written, is decoded again, at worst in each task.
"""

import fcntl
import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.files import (
    create_new,
    discard,
    make_private,
    open_regular,
    sweep_temporaries,
    temporary_name,
)
from csrun.context import cache_dir, current
from csrun.data.formats.base import Array

FOLDER = "decoded"
UNUSED_S = 90 * 24 * 3600.0  # unused for so long, an entry is removed when another one is added
_ARRAY, _CHECKSUM, _LOCK = "array.npy", "array.json", "lock"
_PIECE_BYTES = 8 << 20


class CacheEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of array.json: description and checksum of array.npy."""

    nbytes: int
    crc32: int


def decoded(path: Path, decode: Callable[[Path], Array]) -> Array:
    """Return `decode(path)` as a read-only memory map, shared by the tasks of all jobs.

    Without a launcher, decode in this process. The first task holds a lock while it decodes,
    released if it dies; a modified file is decoded again.

    Raises: what `decode` raises
    """
    # A single process shares it with no other.
    if current() is None:
        return decode(path)
    folder = cache_dir() / FOLDER / _key(path)
    if (kept := _entry_in(folder)) is not None:
        return kept
    with ExitStack() as alone:
        try:
            # Another account's array there would be used as the decoded file.
            make_private(folder)
            alone.enter_context(_locked(folder))
        except (OSError, CsrunError):
            return decode(path)
        if (kept := _entry_in(folder)) is not None:
            return kept
        array = decode(path)
        with suppress(OSError):  # full disk
            _keep(folder, array)
            _remove_unused(folder)
    kept = _entry_in(folder)
    return array if kept is None else kept


def _key(path: Path) -> str:
    # ctime too: a tool that sets the former mtime, as rsync does, still changes it.
    status = path.stat()
    parts = (path.resolve(), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=16).hexdigest()


def _entry_in(folder: Path) -> Array | None:
    """Return the array of a cache entry; None if it is missing or damaged."""
    with suppress(OSError, ValueError, CsrunError):
        kept = stored.read(folder / _CHECKSUM, CacheEntry, "the checksum")
        with open(open_regular(folder / _ARRAY, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if os.fstat(file.fileno()).st_size == kept.nbytes and _checksum(file) == kept.crc32:
                os.utime(folder)  # marks it as used
                # By the descriptor: the file that was checked, whatever has its name by now.
                return _mapped(f"/proc/self/fd/{file.fileno()}")
    return None


def _mapped(path: str) -> Array:
    try:
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
    except ValueError:  # an array without elements cannot be mapped
        return np.load(path)  # type: ignore[no-any-return]


def _checksum(file: BinaryIO) -> int:
    """Checksum of a file."""
    crc32 = 0
    while piece := file.read(_PIECE_BYTES):
        crc32 = zlib.crc32(piece, crc32)
    return crc32


def _keep(folder: Path, array: Array) -> None:
    """Write a cache entry; its checksum is written last and makes it valid."""
    sweep_temporaries(folder)
    temporary = temporary_name(folder / _ARRAY)
    try:
        with open(create_new(temporary), "wb") as file:
            np.save(file, array)
        with open(temporary, "rb") as file:
            kept = CacheEntry(os.fstat(file.fileno()).st_size, _checksum(file))
        # Renamed, not written over: tasks may have the former array mapped.
        temporary.replace(folder / _ARRAY)
    finally:
        discard(temporary)
    stored.write(folder / _CHECKSUM, kept, durable=False)


def _remove_unused(folder: Path) -> None:
    """Remove entries unused for long."""
    oldest_s = time.time() - UNUSED_S
    for other in folder.parent.iterdir():
        if other != folder and other.stat().st_mtime < oldest_s:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = open_regular(folder / _LOCK, flags)
    try:
        # The kernel drops the lock of a task that dies; a lock file alone would stay.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
