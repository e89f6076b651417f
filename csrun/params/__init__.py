"""The command line and the params file of a run.py."""

from csrun.params.arguments import Arguments, Mode, load
from csrun.params.run import RunConfig, main_for, run

__all__ = ["Arguments", "Mode", "RunConfig", "load", "main_for", "run"]
