"""Errors found while a model is traced: each names the layer and the user's line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.utils.exceptions import VerifyException

import csrun
from csrun.base.errors import UsageError

PACKAGE = f"{csrun.__path__[0]}/"


class TraceError(UsageError):
    """A mistake in the user's model function."""


class ShapeError(TraceError):
    """Operands whose shapes or types do not fit."""


def user_line() -> str:
    """`file:line` of the innermost frame outside csrun and the standard library's contextlib."""
    frame = _user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_location() -> FileLineColLoc:
    """The same, as the location of an operator."""
    frame = _user_frame()
    return FileLineColLoc(StringAttr(frame.f_code.co_filename), IntAttr(frame.f_lineno), IntAttr(0))


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_inside(filename: str) -> bool:
    return filename.startswith(PACKAGE) or Path(filename).stem == "contextlib"


@contextmanager
def located(what: str) -> Iterator[None]:
    """Turn a verifier's complaint into one about the layer or function `what`.

    Raises: ShapeError with the layer, the shapes and the user's file and line
    """
    try:
        yield
    except VerifyException as error:
        raise ShapeError(f"{user_line()}: {what}: {error}") from error
