"""The environment as a whole: read to be passed on, and replaced in a forked task."""

import os
from collections.abc import Mapping

JOB_DIR = "CSRUN_JOB_DIR"
SITE = "CSRUN_SITE"
WAFER = "CSRUN_WAFER"
RANK = "SLURM_PROCID"


def inherited() -> dict[str, str]:
    """A copy of this process's environment, to start another program with."""
    return dict(os.environ)


def adopt(variables: Mapping[str, str]) -> None:
    """Set these variables in this process: for a task that was forked, not started."""
    os.environ.update(variables)
