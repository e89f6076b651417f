"""Where csrun keeps what outlives a run: leases, system state, job folders."""

import os
from pathlib import Path


def state_dir() -> Path:
    """The folder of csrun's durable state: `CSRUN_STATE_DIR`, or the user's state folder."""
    if override := os.environ.get("CSRUN_STATE_DIR"):
        return Path(override)
    import platformdirs  # not needed where a site sets the folder

    return Path(platformdirs.user_state_dir("csrun"))


def site_state_dir(site_name: str) -> Path:
    """The part of the state that belongs to one site: its systems, nodes and jobs."""
    return state_dir() / site_name


def jobs_dir_of(site_name: str, configured: str | None = None) -> Path:
    """The folder of the site's job folders: what its file says, else in csrun's state."""
    if configured is None:
        return site_state_dir(site_name) / "jobs"
    return Path(os.path.expandvars(configured)).expanduser()
