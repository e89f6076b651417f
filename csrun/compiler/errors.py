"""Errors of the compiler that a user can act on."""

from csrun.errors import UsageError


class CompileError(UsageError):
    """The model, as it is written, does not compile for the system."""
