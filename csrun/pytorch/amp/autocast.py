"""Autocast in a Session's block: the run's precision determines the 16-bit format."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from csrun.base.half_formats import HalfFormat
from csrun.pytorch.errors import CaptureError, user_line
from csrun.pytorch.half_types import HALF_TYPES

log = logging.getLogger("csrun")

_logged: set[str] = set()


@contextmanager
def autocast_as_precision(half: HalfFormat | None) -> Iterator[None]:
    """Context manager in which autocast does not change recorded operators; half: the run's format.

    Raises: CaptureError if a region is entered in a float32 run
    """
    enter = torch.autocast.__enter__

    def entered(this: Any) -> Any:
        if not this._enabled or this.device != "cpu" or this.fast_dtype not in HALF_TYPES:
            return enter(this)
        kind = str(this.fast_dtype).removeprefix("torch.")
        if half is None:
            raise CaptureError(
                f"{user_line()}: torch.autocast to {kind} in a float32 run: give "
                f'cbtorch.initialize precision="mixed_{kind}", or leave autocast out'
            )
        _log_once(kind, half)
        with patch.object(this, "_enabled", False):
            return enter(this)

    with patch.object(torch.autocast, "__enter__", entered):
        yield


def _log_once(kind: str, half: HalfFormat) -> None:
    """Log once which format replaces that of autocast."""
    if kind not in _logged:
        _logged.add(kind)
        log.info(
            f"{user_line()}: torch.autocast to {kind}: the run's precision, mixed_{half.name}, "
            "decides what is 16 bits wide"
        )
