"""Errors of tracing; each names the layer and the user's line."""

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.utils.exceptions import VerifyException

from csrun.base.callers import user_frame, user_line
from csrun.base.errors import UsageError

__all__ = ["ShapeError", "TraceError", "located", "user_line", "user_location"]


class TraceError(UsageError):
    """A mistake in the user's model function."""


class ShapeError(TraceError):
    """Operands of mismatched shapes or types."""


def user_location() -> FileLineColLoc:
    """Location of an operator: the file and line of `user_line`."""
    frame = user_frame()
    return FileLineColLoc(StringAttr(frame.f_code.co_filename), IntAttr(frame.f_lineno), IntAttr(0))


@contextmanager
def located(what: str) -> Iterator[None]:
    """Raise a verifier's error as one of the layer or function `what`.

    Raises: ShapeError with the layer, the shapes and the user's file and line
    """
    try:
        yield
    except VerifyException as error:
        raise ShapeError(f"{user_line()}: {what}: {error}") from error
