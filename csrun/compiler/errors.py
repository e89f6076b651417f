"""Errors of the compiler that a user can fix."""

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from csrun.base.errors import UsageError


class CompileError(UsageError):
    """The model does not compile for the system. layer: layer with the error."""

    layer = ""


class TooLargeError(CompileError):
    """The plan exceeds the wafer's memory.

    fits: maximum number of samples at a time that would fit, 0 if none does.
    why: memory needed and available, in a few words.
    """

    def __init__(self, message: str, fits: int, why: str) -> None:
        super().__init__(message)
        self.fits, self.why = fits, why


def short_name(operation: Operation) -> str:
    """The operator's name in messages."""
    return operation.name.removeprefix("cirh.")


def refused(operation: Operation, message: str) -> CompileError:
    """Return the error about an operator that cannot be compiled, with the user's file and line if
    known.
    """
    match operation.location:
        case FileLineColLoc(filename=file, line=line):
            return CompileError(f"{file.data}:{line.data}: {message}")
    return CompileError(message)
