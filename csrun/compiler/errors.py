"""Errors of the compiler that a user can act on."""

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from csrun.base.errors import UsageError


class CompileError(UsageError):
    """The model, as it is written, does not compile for the system. layer: that is at fault."""

    layer = ""


class TooLargeError(CompileError):
    """A plan that the wafer cannot hold.

    fits: the most samples that would fit of what is computed at a time, 0 when none do. why: what
    is needed and what there is, in a few words.
    """

    def __init__(self, message: str, fits: int, why: str) -> None:
        super().__init__(message)
        self.fits, self.why = fits, why


def short_name(operation: Operation) -> str:
    """The operator's name in messages."""
    return operation.name.removeprefix("cirh.")


def refused(operation: Operation, message: str) -> CompileError:
    """An operator that cannot be compiled, with the user's file and line where they are known."""
    match operation.location:
        case FileLineColLoc(filename=file, line=line):
            return CompileError(f"{file.data}:{line.data}: {message}")
    return CompileError(message)
