"""How much of its inner life csrun shows: CSRUN_DEBUG."""

import os
from enum import IntEnum

from csrun.base.errors import UsageError

DEBUG = "CSRUN_DEBUG"


class DebugLevel(IntEnum):
    """What goes to the console besides a run's own lines."""

    NOTHING = 0
    PASSES = 1  # the compiler's passes: how long each took, what it did
    STAGES = 2  # the module's text after each of them, too


def debug_level() -> DebugLevel:
    """The level that the user asks for.

    Raises: UsageError for a value that is none
    """
    text = os.environ.get(DEBUG, "0")
    try:
        return DebugLevel(int(text))
    except ValueError as error:
        known = ", ".join(f"{level.value} ({level.name.lower()})" for level in DebugLevel)
        raise UsageError(f"{DEBUG} must be one of {known}, got {text!r}") from error
