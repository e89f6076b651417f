"""The line of the user's script that called csrun, and structs that name it when misused."""

import sys
from types import FrameType
from typing import Any

import msgspec

from csrun.base.errors import UsageError


def user_line() -> str:
    """`file:line` of the innermost frame outside csrun and the standard library's contextlib."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_frame() -> FrameType:
    """The innermost frame outside csrun and the standard library's contextlib."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame):
        frame = frame.f_back
    return frame


def _is_inside(frame: FrameType) -> bool:
    """By the module, not the file: what dataclass generates has none."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("csrun", "contextlib")


class CheckedStruct(msgspec.StructMeta):
    """Metaclass of structs that scripts construct: a wrong call is a UsageError with its line.

    One that a file is read into is not called: its reader adds the place in the file.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  a metaclass
        """Raises: UsageError for arguments that are missing, unknown or too many"""
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            message = str(error)
            raise UsageError(
                f"{user_line()}: {cls.__name__}: {message[:1].lower()}{message[1:]}; "
                f"the arguments are {cls.__name__}({_arguments(cls)})"
            ) from error
        except UsageError as error:
            raise type(error)(f"{user_line()}: {cls.__name__}: {error}") from error


def first_misfit(struct: msgspec.Struct) -> str | None:
    """The first field whose value is not of its declared type, with rule and value, or None."""
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            rule = str(error).partition(" - at")[0].partition(", got")[0].replace("`", "")
            return f"{field.name}: {rule}, got {value!r}"
    return None


def _arguments(kind: type) -> str:
    """The arguments of a struct with their defaults; those after * are given by keyword only."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    positional = getattr(kind, "__match_args__", ())
    by_keyword = [name for name in fields if name not in positional]
    names = [*positional, *(["*"] if by_keyword else []), *by_keyword]
    return ", ".join(
        name if name == "*" or fields[name].required else f"{name}={fields[name].default!r}"
        for name in names
    )
