"""Line of the user's script that lowered operators come from, in errors and in the module."""

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.utils.exceptions import VerifyException

from csrun.base.errors import UsageError
from csrun.pytorch.errors import CaptureError, note_bug
from csrun.pytorch.operators.base import Unsupported


class SourceLine:
    """Current line, as FILE:NUMBER; empty before the first operator."""

    def __init__(self) -> None:
        self._line = ""

    @contextmanager
    def attributed(self, line: str, what: str, scope: str = "") -> Iterator[None]:
        """Attribute operators and errors of the block to a line.

        what: operator, or another thing that is lowered. scope: its layer.

        A bug keeps its traceback and gets a note with line and layer.

        Raises: CaptureError for what is not supported
        """
        self._line = line
        try:
            yield
        except (Unsupported, VerifyException) as error:
            refusal = CaptureError(f"{line}: {what}: {error}")
            refusal.layer = scope
            raise refusal from error
        except UsageError:
            raise
        except Exception as error:
            note_bug(error, f"{line}: {what}{f' of layer {scope}' if scope else ''}: ")
            raise

    def location(self) -> FileLineColLoc:
        """Return the line as a location of the module."""
        file, _, line = self._line.rpartition(":")
        number = int(line) if line.isdigit() else 0
        return FileLineColLoc(StringAttr(file), IntAttr(number), IntAttr(0))
