"""The command line and the params file of a run.py."""

from csrun.params.arguments import Arguments, Mode
from csrun.params.load import load
from csrun.params.run import RunConfig, run

__all__ = ["Arguments", "Mode", "RunConfig", "load", "run"]
