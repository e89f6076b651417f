"""Where the console commands begin: Ctrl-C ends them in order before their modules are there, too.

It imports little, all of it from the standard library.
"""

import os
import signal
from importlib import import_module
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


def cs() -> None:
    """The console command."""
    _enter("cs")


def cs_input_analyzer() -> None:
    """The console command."""
    _enter("cs_input_analyzer")


def csctl() -> None:
    """The console command."""
    _enter("csctl")


def csrun_cpu() -> None:
    """The console command."""
    _enter("csrun_cpu")


def csrun_wse() -> None:
    """The console command."""
    _enter("csrun_wse")


def python_ws() -> None:
    """The console command."""
    _enter("python_ws")


def _enter(command: str) -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # as it is for a command in a script's background
        signal.signal(signal.SIGINT, _leave)
    module = import_module(f"csrun.cli.{command}")
    signal.signal(signal.SIGINT, usual)
    module.main()


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
