"""What a run.py needs for its command line and its params file: parse, check, run."""

from csrun.frontend.params import Arguments, Mode, RunConfig, load, run

__all__ = ["Arguments", "Mode", "RunConfig", "load", "run"]
