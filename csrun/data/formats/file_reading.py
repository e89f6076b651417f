"""Reading of files for formats: decompression, and errors that name the position."""

import gzip
import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from csrun.data.errors import DataError

PIECE_BYTES = 1 << 22  # read in pieces, so that a damaged length does not allocate memory


@contextmanager
def opened(path: Path, gzipped: bool | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed if gzipped; None decides by the suffix .gz.

    Raises: DataError for a file that cannot be opened, decompressed or read
    """
    try:
        # Apart from reading, whose errors have a position in the file.
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
    """Read `count` bytes, or fewer at the end of the file."""
    pieces = []
    while count and (piece := file.read(min(count, PIECE_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def needed(module: str, form: str, extra: str) -> Any:
    """Import the library of a format.

    Raises: DataError with the command that installs it
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{form}: needs {module}, which is not installed: pip install 'csrun[{extra}]'"
        ) from error
