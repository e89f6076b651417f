"""One run of the dashboard: progress, tasks, checkpoints, performance, and locations of its
files.
"""

import shlex
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.jobs.folder import JobFolder
from csrun.records import checkpoints, performance, trace_file
from csrun.records.model_dir import newest_compile
from csrun.records.performance import Performance
from csrun.watch.site_snapshot import RunProgress, TaskLine

COMPILE_REPORT = "compile_report.html"
_CLOCK_NS = 10**9  # two changes of a folder that are closer may have equal times


class CheckpointLine(msgspec.Struct, frozen=True):
    """A checkpoint; place: its state in the index. Units: written_s since the epoch."""

    name: str
    step: int
    nbytes: int
    written_s: float
    place: str
    problem: str | None


class RunFiles(msgspec.Struct, frozen=True):
    """Files of a run that the page links to, or names in a command."""

    compile_report: str | None = None
    traces: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    tensorboard: str = ""


class RunDetail(msgspec.Struct, frozen=True):
    """One run. failure: the first cause, if it failed; facts: details of its job, by name."""

    id: str
    name: str
    state: str
    job_id: int | None = None
    failure: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    model_dir: str | None = None
    run: RunProgress | None = None
    tasks: tuple[TaskLine, ...] = ()
    checkpoints: tuple[CheckpointLine, ...] = ()
    performance: Performance | None = None
    files: RunFiles = RunFiles()


def checkpoint_lines(model_dir: Path) -> tuple[CheckpointLine, ...]:
    """Return the checkpoints of a model_dir, oldest first; cached while no file is added."""
    with suppress(OSError):
        changed_ns = model_dir.stat().st_mtime_ns
        if time.time_ns() - changed_ns > _CLOCK_NS:
            return _listed_at(model_dir, changed_ns)
    return _list_checkpoints(model_dir)


@lru_cache
def _listed_at(model_dir: Path, changed_ns: int) -> tuple[CheckpointLine, ...]:
    return _list_checkpoints(model_dir)


def _list_checkpoints(model_dir: Path) -> tuple[CheckpointLine, ...]:
    with suppress(UsageError, CsrunError, OSError):
        return tuple(
            CheckpointLine(c.name, c.step, c.nbytes, c.written_s, c.place, c.problem)
            for c in checkpoints.listing(model_dir)
        )
    return ()


def files_of(model_dir: Path | None, job_folder: JobFolder | None) -> RunFiles:
    """Return the existing files."""
    logs = (
        () if job_folder is None else tuple(sorted(p.stem for p in job_folder.logs.glob("*.log")))
    )
    if model_dir is None:
        return RunFiles(logs=logs)
    report = report_of(model_dir)
    return RunFiles(
        None if report is None else str(report),
        tuple(path.name for path in traces_of(model_dir)),
        logs,
        f"tensorboard --logdir {shlex.quote(str(model_dir))}",
    )


def report_of(model_dir: Path) -> Path | None:
    """Return the compile report of the newest compile."""
    folder = newest_compile(model_dir)
    path = None if folder is None else folder / COMPILE_REPORT
    return path if path is not None and path.is_file() else None


def traces_of(model_dir: Path) -> list[Path]:
    """Return the traces of a run, by name."""
    return sorted((model_dir / trace_file.FOLDER).glob("steps_*.json"))


def performance_of(model_dir: Path, since_s: float, until_s: float | None) -> Performance | None:
    """Return the record of the training that ended in this period; the folder may have another
    job's.

    Units: seconds since the epoch
    """
    with suppress(OSError):
        written_s = performance.path_of(model_dir).stat().st_mtime
        if since_s <= written_s and (until_s is None or written_s <= until_s + 1):
            return performance.read(model_dir)
    return None
