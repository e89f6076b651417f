"""Entry points of the console commands: Ctrl-C ends them cleanly, even while modules are imported.

It imports little, all of it from the standard library.
"""

import os
import signal
from functools import partial
from importlib import import_module
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


def _enter(command: str) -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # as it is for a command in a script's background
        signal.signal(signal.SIGINT, _leave)
    module = import_module(f"csrun.cli.{command}")
    signal.signal(signal.SIGINT, usual)
    try:
        module.main()
    except KeyboardInterrupt:  # before or after the command itself, which reports its own
        os._exit(EXIT_INTERRUPTED)


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


# The console commands, by the names of their modules.
cs = partial(_enter, "cs")
cs_input_analyzer = partial(_enter, "cs_input_analyzer")
csctl = partial(_enter, "csctl")
csrun = partial(_enter, "csrun")
csrun_cpu = partial(_enter, "csrun_cpu")
csrun_wse = partial(_enter, "csrun_wse")
python_pt = partial(_enter, "python_pt")
python_ws = partial(_enter, "python_ws")
