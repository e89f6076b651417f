"""Retention of ended jobs' folders by number, age and size."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from csrun.context.job import LIVE_LOCK
from csrun.jobs.folder import JobFolder
from csrun.site import Retention
from csrun.system import is_held, try_lock

_MB = 1_000_000
_DAY_S = 86_400


@dataclass(frozen=True)
class Leftover:
    """Folder of an ended job; `changed_s`, in seconds since the epoch, is about the job's end."""

    path: Path
    changed_s: float
    size_bytes: int


def measure(path: Path, *, with_size: bool = True) -> Leftover:
    """Measure a job's folder with all of its files.

    Raises: OSError if it is deleted meanwhile
    """
    sizes = [os.lstat(file).st_size for file in _files(path)] if with_size else []
    return Leftover(path, path.stat().st_mtime, sum(sizes))


def _files(path: Path) -> list[str]:
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def expired(newest_first: Sequence[Leftover], rule: Retention, now_s: float) -> list[Leftover]:
    """Return the folders beyond a site's retention. The newest one is always kept."""
    sizes = accumulate(each.size_bytes for each in newest_first)
    return [
        each
        for index, (each, total) in enumerate(zip(newest_first, sizes, strict=True))
        if index > 0
        and (
            index >= rule.keep_count
            or (rule.keep_days is not None and now_s - each.changed_s > rule.keep_days * _DAY_S)
            or (rule.keep_mb is not None and total > rule.keep_mb * _MB)
        )
    ]


def expired_folders(
    newest_first: Sequence[Path], rule: Retention, *, with_size: bool = False
) -> list[Leftover]:
    """Return the folders to delete; those of living jobs count, but are never deleted."""
    found, with_size = [], with_size or rule.keep_mb is not None
    for path in newest_first:
        with suppress(OSError):
            found.append(measure(path, with_size=with_size))
    return [e for e in expired(found, rule, time.time()) if not is_held(e.path / LIVE_LOCK)]


def prune(
    newest_first: Sequence[Path],
    rule: Retention,
    on_dead: Callable[[Path], None] = lambda path: None,
) -> None:
    """Delete the folders of dead jobs beyond the retention, and the secrets of all dead jobs.

    on_dead: called with the folder of each dead job, before it is deleted.
    """
    gone = {each.path for each in expired_folders(newest_first, rule)}
    for path in newest_first:
        with suppress(OSError):
            _clear_if_dead(path, path in gone, on_dead)


def _clear_if_dead(path: Path, remove: bool, on_dead: Callable[[Path], None]) -> None:
    dead = try_lock(path / LIVE_LOCK, "")
    if dead is None:
        return
    # Under its lock, so that no other process takes the folder for a living job's meanwhile.
    with dead:
        on_dead(path)
        if remove:
            shutil.rmtree(path)
        else:
            JobFolder(path).clear()
