"""Files as formats read them: unpacked, with errors that name the place."""

import gzip
import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from csrun.data.errors import DataError

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
