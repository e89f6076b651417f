"""Errors of recorded loops, and the user's source line that each names."""

import logging
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy as np
import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.base.source_folder import SOURCE_FOLDER

_CSRUN = tuple(
    f"{folder}/"
    for folder in (SOURCE_FOLDER, *map(SOURCE_FOLDER.with_name, ("cerebras_torch", "cerebras")))
)
_TORCH = f"{Path(torch.__file__).parent}/"
_NUMPY = f"{Path(np.__file__).parent}/"
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
# the logger writes each error that it raises, with a traceback
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_MACHINERY = frozenset({"contextlib", "functools"})


class CaptureError(UsageError):
    """Error in the user's loop or model, found while a step is recorded.

    layer: layer of the refused operator, if known.
    """

    layer = ""


def call_for_user(
    func: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a function on behalf of the user's code.

    `is_from_call` tells errors of PyTorch from bugs of csrun by this frame.
    """
    return func(*args, **(kwargs or {}))


def failure_of(error: BaseException, model: torch.nn.Module) -> CaptureError | None:
    """Convert PyTorch's error in a recorded step to one with the user's line and layer.

    None for csrun's own errors, for errors of the user's code, and for a bug in csrun, which keeps
    its traceback and gets a note with line and layer.
    """
    frames = list(walk_tb(error.__traceback__))
    users = [n for n, (frame, _) in enumerate(frames) if not _is_inside(_file(frame))]
    if not isinstance(error, Exception) or isinstance(error, CsrunError) or not users:
        return None
    frame, number = frames[users[-1]]
    inner = [each for each, _ in frames[users[-1] + 1 :] if is_of_csrun(_file(each))]
    if not inner:
        return None
    names = {id(module): name for name, module in model.named_modules()}
    called = [names.get(id(frame.f_locals.get("self"))) for frame, _ in frames]
    layer = next((f"layer {name}: " for name in reversed(called) if name), "")
    place = f"{_file(frame)}:{number}: {layer}"
    if not is_from_call(error):
        note_bug(error, place)
        return None
    return CaptureError(f"{place}PyTorch raises {type(error).__name__}: {error}")


def is_from_call(error: BaseException) -> bool:
    """True if an error comes from a call on behalf of the user's code, not from csrun itself."""
    ours = [each for each, _ in walk_tb(error.__traceback__) if is_of_csrun(_file(each))]
    return bool(ours) and ours[-1].f_code is call_for_user.__code__


def note_bug(error: BaseException, place: str) -> None:
    """Add the user's line to an unexpected error, once; OSError, such as a full disk, is not a
    bug.
    """
    if not isinstance(error, OSError) and not hasattr(error, "__notes__"):
        error.add_note(f"{place}csrun failed here, which is a bug in csrun: please report it")


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def user_line() -> str:
    """Return `file:line` of the innermost frame in the user's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inside(filename: str) -> bool:
    return is_of_torch(filename) or is_of_csrun(filename) or _is_of_keras(filename)


@cache
def _is_of_keras(filename: str) -> bool:
    """True for a file of Keras, whose layers and operators a model's code calls."""
    return "/site-packages/keras/" in filename


@cache
def is_of_torch(filename: str) -> bool:
    """True if a file is PyTorch's, or of contextlib and functools, which wrap its functions."""
    return filename.startswith(_TORCH) or Path(filename).stem in _MACHINERY


@cache
def is_of_csrun(filename: str) -> bool:
    return filename.startswith(_CSRUN)


@cache
def is_users(file: str) -> bool:
    """True if a file belongs to none of csrun, PyTorch, NumPy and the standard library."""
    if not file or file.startswith("<frozen") or is_of_torch(file) or is_of_csrun(file):
        return False
    is_stdlib = file.startswith(_STDLIB) and not is_installed(file)
    return not (is_stdlib or file.startswith(_NUMPY))


@cache
def is_installed(file: str) -> bool:
    """True if a file belongs to an installed package, whose globals are assumed constant."""
    return "/site-packages/" in file or "/dist-packages/" in file


def is_users_call(above: int = 2) -> bool:
    """True if a dispatch mode, or its caller some levels up, was called from the user's code or a
    library.
    """
    frame = sys._getframe(above)
    while frame.f_back is not None and is_of_torch(frame.f_code.co_filename):
        frame = frame.f_back
    return not is_of_csrun(frame.f_code.co_filename)
