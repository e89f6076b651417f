"""The command line and the params file of a run.py."""

from csrun.frontend.params.arguments import Arguments, Mode
from csrun.frontend.params.load import load
from csrun.frontend.params.run import run
from csrun.frontend.params.runconfig import RunConfig

__all__ = ["Arguments", "Mode", "RunConfig", "load", "run"]
