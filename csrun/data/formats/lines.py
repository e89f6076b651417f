"""Text files: one sample per line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Sample
from csrun.data.formats.file_reading import opened

MAX_LINE_BYTES = 1 << 26  # a longer line means that the file is not text
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Lines:
    """Lines of a text file, also gzipped, without line ends; an empty line is a sample.

    A line is the uint8 vector of its UTF-8 bytes, whatever the encoding of the file:
    `bytes(line).decode()` in a map is its text.
    """

    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        require_line_encoding("Lines", self.encoding)

    def samples(self, path: Path) -> Iterator[Sample]:
        """Yield a uint8 vector per line.

        Raises: DataError naming file, line and byte of a decoding error
        """
        for line in text_lines(path, self.encoding):
            text = line.removesuffix("\n").removesuffix("\r")
            yield (np.frombuffer(text.encode(), np.uint8),)


def text_lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a text file with their line ends, without a byte order mark.

    Raises: DataError naming file, line and byte of a decoding error
    """
    begin = 0
    with opened(path) as file:
        number = 0
        # One more byte than allowed distinguishes a longer line from one that just fits.
        while content := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rule = f"a line must have at most {MAX_LINE_BYTES} bytes"
            require(len(content) <= MAX_LINE_BYTES, f"{path}:{number}", rule, "more; is it text?")
            text = _decoded(path, number, begin, content, encoding)
            # Editors of Windows write a mark first, which would belong to the first field.
            yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
            begin += len(content)


def require_line_encoding(form: str, encoding: str) -> None:
    """Refuse an unknown encoding, or one whose line end is not the byte 0x0a."""
    try:
        ends = "\n".encode(encoding) == b"\n"
    except (LookupError, UnicodeError):
        ends = False
    require(ends, form, "encoding must be a text encoding that extends ASCII", encoding)


def _decoded(path: Path, number: int, begin: int, content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {begin + error.start} of the file, "
            f"0x{content[error.start]:02x}, is not {encoding}: {error.reason}; pass its encoding, "
            "e.g. latin-1"
        ) from error
