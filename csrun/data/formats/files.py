"""Files as formats read them: unpacked, decoded once a job, with errors that name the place."""

import fcntl
import gzip
import hashlib
import importlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from csrun.context import current
from csrun.data.errors import DataError
from csrun.data.formats.base import Array

PIECE_BYTES = 1 << 22  # what a file promises is believed piece by piece, and not allocated at once


@contextmanager
def opened(path: Path, gzipped: bool | None = None) -> Iterator[BinaryIO]:
    """A file to read bytes from; unpacked when gzipped, or, for None, when its name ends in .gz.

    Raises: DataError for what cannot be opened, unpacked or read
    """
    try:
        plain = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error
    unpack = path.suffix == ".gz" if gzipped is None else gzipped
    with plain:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if unpack else plain
        try:
            yield file
        except (EOFError, OSError, zlib.error) as error:
            kind = "gzip file" if unpack else "file"
            raise DataError(
                f"{path}: byte {file.tell()}: not a readable {kind}: {error}"
            ) from error


def read_up_to(file: BinaryIO, count: int) -> bytes:
    """`count` bytes, or what is left when that is less."""
    pieces = []
    while count and (piece := file.read(min(count, PIECE_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def needed(module: str, form: str, extra: str) -> Any:
    """A library that one format needs.

    Raises: DataError with the line that installs it
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{form}: needs {module}, which is not installed: pip install 'csrun[{extra}]'"
        ) from error


def decoded(path: Path, decode: Callable[[Path], Array]) -> Array:
    """`decode(path)`, shared by the tasks of a job as a read-only memory map.

    Without a launcher around this process it is decoded right here. The first task to come holds
    a lock, which dies with it, while it decodes; a changed file is decoded anew.
    """
    context = current()
    if context is None:
        return decode(path)
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    target = context.cache_dir / f"{_key(path)}.npy"
    if not target.exists():
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _save(target, decode(path))
    return _load(target)


def _key(path: Path) -> str:
    stat = path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def _save(target: Path, array: Array) -> None:
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(target)


def _load(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
    except ValueError:  # an array without elements cannot be mapped
        return np.load(path)  # type: ignore[no-any-return]
