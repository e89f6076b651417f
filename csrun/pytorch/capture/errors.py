"""What a recorded loop must not do; each error names the user's file and line."""

import sys
from functools import cache
from pathlib import Path

import torch

import csrun
from csrun.base.errors import UsageError

_CSRUN = (f"{csrun.__path__[0]}/", f"{Path(csrun.__path__[0]).parent / 'cerebras_torch'}/")
_TORCH = f"{Path(torch.__file__).parent}/"
_MACHINERY = frozenset({"contextlib", "functools"})


class CaptureError(UsageError):
    """A mistake in the user's loop or model, found while it is recorded."""


def user_line() -> str:
    """`file:line` of the innermost frame that is the user's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inside(filename: str) -> bool:
    return is_of_torch(filename) or is_of_csrun(filename)


@cache
def is_of_torch(filename: str) -> bool:
    """Whether a file is PyTorch's, or what calls go through in between."""
    return filename.startswith(_TORCH) or Path(filename).stem in _MACHINERY


@cache
def is_of_csrun(filename: str) -> bool:
    """Whether a file is csrun's."""
    return filename.startswith(_CSRUN)
