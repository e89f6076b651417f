"""Entry points of the console commands: Ctrl-C ends them cleanly, even during imports.

This module only imports a few modules of the standard library.
"""

import os
import signal
from functools import partial
from importlib import import_module
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


def _enter(command: str) -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # as for a command that a script runs in the background
        signal.signal(signal.SIGINT, _leave)
    module = import_module(f"csrun.cli.{command}")
    signal.signal(signal.SIGINT, usual)
    try:
        module.main()
    except KeyboardInterrupt:  # before or after the command, which reports its own errors
        os._exit(EXIT_INTERRUPTED)


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


# Console commands, by module name.
cs = partial(_enter, "cs")
cs_input_analyzer = partial(_enter, "cs_input_analyzer")
csctl = partial(_enter, "csctl")
csrun = partial(_enter, "csrun")
csrun_cpu = partial(_enter, "csrun_cpu")
csrun_wse = partial(_enter, "csrun_wse")
python_pt = partial(_enter, "python_pt")
python_ws = partial(_enter, "python_ws")
