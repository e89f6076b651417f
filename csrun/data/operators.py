"""What an input pipeline is made of, as its author wrote it: for reports, and to name stages."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import csrun

CSRUN = Path(csrun.__path__[0])
DATA = CSRUN / "data"


class Level(StrEnum):
    """What an operator works on."""

    SAMPLE = "sample"
    BATCH = "batch"


@dataclass(frozen=True)
class Operator:
    """One operation of a chain.

    options: its arguments by name, defaults filled in; a function by its name. where: file and line
    of the user's call, e.g. `data.py:34`; empty where nobody knows.
    """

    name: str
    level: Level
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""

    @property
    def stage(self) -> str:
        """How time spent in it is labelled: `map load`, `batch`, `from_batches generator`."""
        what = self.options.get("iterable" if self.name == "from_batches" else "function")
        return f"{self.name} {what}" if what else self.name

    def failed_at(self, what: str) -> str:
        """A note for an exception of the user's function."""
        place = f" ({self.where})" if self.where else ""
        return f"input_fn: {self.stage}{place} failed at {what}"


def name_of(function: Callable[..., Any]) -> str:
    """A user's function in a report; a lambda by the line that it begins on."""
    if isinstance(function, partial):
        return name_of(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    return f"lambda:{function.__code__.co_firstlineno}" if name == "<lambda>" else name


def call_site() -> str:
    """File and line of the innermost call from outside this package; empty for csrun's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(DATA):
        frame = frame.f_back
    if frame is None or Path(frame.f_code.co_filename).is_relative_to(CSRUN):
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
