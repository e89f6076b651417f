"""The folder of an analysis: what it and its runs, on whatever node, leave for each other."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.context import jobs_dir_of
from csrun.context.job import LIVE_LOCK
from csrun.site import Site
from csrun.system import lock, try_lock

_PREFIX = "analysis-"


@contextmanager
def analysis_folder(site: Site) -> Iterator[Path]:
    """A folder beside the jobs' that lives as long as this; dead ones are removed, too.

    Raises: UsageError when none can be made
    """
    jobs_dir = jobs_dir_of(site.name, site.jobs_dir)
    try:
        jobs_dir.mkdir(parents=True, exist_ok=True)
        _prune(jobs_dir)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=jobs_dir))
    except OSError as error:
        raise UsageError(
            f"{jobs_dir}: no folder can be made there: {error.strerror}; set CSRUN_STATE_DIR, or"
            " jobs_dir in the site file, to a folder that you may write"
        ) from error
    try:
        with lock(path / LIVE_LOCK, f"process {os.getpid()}"):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _prune(jobs_dir: Path) -> None:
    for path in jobs_dir.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    dead = try_lock(path / LIVE_LOCK, "")
    if dead is not None:
        with dead:
            shutil.rmtree(path)
