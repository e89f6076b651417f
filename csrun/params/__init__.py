"""Command line and params file of a run.py."""

from csrun.base.mode import Mode
from csrun.base.run_config import RunConfig
from csrun.params.command_line import Arguments, load
from csrun.params.entry_point import main_for, run

__all__ = ["Arguments", "Mode", "RunConfig", "load", "main_for", "run"]
