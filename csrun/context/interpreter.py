"""Which of csrun's interpreters this process is, without a job around it.

The mode travels as an implementation-specific option of CPython (-X), which other processes do not
inherit as they do an environment variable.
"""

import sys

from csrun.base.mode import ExecutionMode

_NAME = "csrun_mode"


def interpreter_options(mode: ExecutionMode) -> tuple[str, str]:
    """Options that make Python the interpreter of a mode."""
    return "-X", f"{_NAME}={mode}"


def interpreter_mode() -> ExecutionMode:
    """The mode of this interpreter; plain Python's is PIPELINED."""
    return ExecutionMode(sys._xoptions.get(_NAME, ExecutionMode.PIPELINED))
