"""Errors of the compiler that a user can act on."""

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from csrun.base.errors import UsageError


class CompileError(UsageError):
    """The model, as it is written, does not compile for the system."""


def refused(operation: Operation, message: str) -> CompileError:
    """An operator that cannot be compiled, with the user's file and line where they are known."""
    match operation.location:
        case FileLineColLoc(filename=file, line=line):
            return CompileError(f"{file.data}:{line.data}: {message}")
    return CompileError(message)
