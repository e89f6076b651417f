"""Where csrun keeps what outlives a run: leases, system state, job folders."""

import os
from pathlib import Path

import platformdirs


def state_dir() -> Path:
    """The folder of csrun's durable state: `CSRUN_STATE_DIR`, or the user's state folder."""
    override = os.environ.get("CSRUN_STATE_DIR")
    return Path(override) if override else Path(platformdirs.user_state_dir("csrun"))
