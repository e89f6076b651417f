"""Text files: a sample a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Sample
from csrun.data.formats.files import opened

MAX_LINE_BYTES = 1 << 26  # a longer one is a file of another kind
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Lines:
    """The lines of a text file, .gz ones too, without their line ends; an empty one is a sample.

    A line is the uint8 vector of its UTF-8 bytes, whatever the encoding of the file is:
    `bytes(line).decode()` in a map is its text, and bytes are tokens already.
    """

    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        require_line_encoding("Lines", self.encoding)

    def samples(self, path: Path) -> Iterator[Sample]:
        """One uint8 vector a line.

        Raises: DataError naming file, line and byte of what the encoding does not know
        """
        for line in text_lines(path, self.encoding):
            text = line.removesuffix("\n").removesuffix("\r")
            yield (np.frombuffer(text.encode(), np.uint8),)


def text_lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a text file with their line ends; a byte order mark is left out.

    Raises: DataError naming file, line and byte of what the encoding does not know
    """
    begin = 0
    with opened(path) as file:
        number = 0
        while content := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            rule = f"a line has at most {MAX_LINE_BYTES} bytes"
            require(len(content) <= MAX_LINE_BYTES, f"{path}:{number}", rule, "more; is it text?")
            text = _decoded(path, number, begin, content, encoding)
            yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
            begin += len(content)


def require_line_encoding(form: str, encoding: str) -> None:
    """Refuse an encoding that Python does not know, or whose line ends are not a byte 0x0a."""
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
            f"0x{content[error.start]:02x}, is not {encoding}: {error.reason}; give its encoding, "
            "e.g. latin-1"
        ) from error
