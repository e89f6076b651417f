"""Table of runs: jobs of a site, and model_dirs below a folder that no listed job writes to."""

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.files import account_name
from csrun.context import JobFile
from csrun.jobs.folder import JobFolder
from csrun.launch.backend import Backend
from csrun.records import performance
from csrun.records.scalar_events import PATTERN, begun_s, event_files
from csrun.watch import Collector
from csrun.watch.displayed_job import model_dir_of
from csrun.watch.run_values import Extent, RunValues
from csrun.watch.site_snapshot import JobLine

# bytes of an event file's end, usually two logged steps
NEWEST_POINTS = Extent(points=4, first_bytes=1 << 11, files=1)
BEHIND_HISTOGRAMS = Extent(points=4, first_bytes=1 << 16, files=1)  # if these have no loss
MOST_FOLDERS = 10_000  # folders per scan; a home folder with data sets has more
DEEPEST = 6
FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"
WRITTEN_S = 60.0  # a run without a job is considered running if its events are newer
SCAN_S = 10.0
IDLE_SHARE = 200  # a scan of t seconds is repeated after 200 t at the earliest
_MARKS = (PATTERN.removesuffix("*"), "tfcs_", "model-ckpt-")  # names that only a model_dir has
_SKIPPED = frozenset({"__pycache__", "node_modules"})


class RunRow(msgspec.Struct, frozen=True):
    """A row: a job, or a model_dir that no listed job writes to (`job_id` is None).

    state: as the scheduler names it; for a folder `finished`, `running` or `stopped`.
    loss, rate: at `step`, the newest logged one.
    """

    id: str
    name: str
    state: str
    job_id: int | None = None
    user: str = ""
    begun: datetime | None = None
    elapsed_s: float | None = None
    step: int | None = None
    loss: float | None = None
    rate: float | None = None
    model_dir: str | None = None
    why: str = ""


class RunRows(msgspec.Struct, frozen=True):
    """The table. is_cut: there are more folders than one scan visits. problem: error about the
    jobs.
    """

    folder: str
    rows: tuple[RunRow, ...]
    is_cut: bool
    problem: str = ""


def model_dirs_below(folder: Path) -> tuple[list[Path], bool]:
    """Return the model_dirs in a folder, or itself; and whether there are more than a scan
    visits.
    """
    found: list[Path] = []
    left, looked = [(folder, 0)], 0
    while left:
        if (looked := looked + 1) > MOST_FOLDERS:
            return found, True
        path, depth = left.pop()
        try:
            with os.scandir(path) as entries:
                listed = [*entries]
        except OSError:
            continue
        if any(entry.name.startswith(_MARKS) for entry in listed):
            found.append(path)
        elif depth < DEEPEST:
            left += [(Path(entry.path), depth + 1) for entry in listed if _is_searched(entry)]
    return found, False


def _is_searched(entry: "os.DirEntry[str]") -> bool:
    if entry.name.startswith(".") or entry.name in _SKIPPED:
        return False
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False


def folder_id(model_dir: Path) -> str:
    """Return the id of a folder's row, which is not a path, so that a request cannot name other
    folders.
    """
    return hashlib.blake2s(os.fsencode(model_dir), digest_size=8).hexdigest()


@dataclass(frozen=True)
class _FolderRow:
    """A folder's row with the modification times of the files that it depends on."""

    row: RunRow
    newest: tuple[Path, ...]
    stamps: tuple[int, ...]

    @staticmethod
    def stamps_of(model_dir: Path, newest: Iterable[Path]) -> tuple[int, ...]:
        """Return the modification times of the files; 0 for a missing one."""
        paths = (model_dir, performance.path_of(model_dir), *newest)
        return tuple(map(_changed_ns, paths))

    def is_current(self, model_dir: Path) -> bool:
        """Return whether nothing has changed since."""
        return self.stamps == self.stamps_of(model_dir, self.newest)


class RunTable:
    """The rows, read again where files may have changed."""

    def __init__(self, collector: Collector, backend: Backend, folder: Path) -> None:
        self._collector, self._backend, self.folder = collector, backend, folder
        self._values: dict[str, RunValues] = {}
        self._known: dict[str, _FolderRow] = {}
        self._ended: dict[int, RunRow] = {}
        self._model_dirs: dict[int, Path] = {}
        self._folders: tuple[Path, ...] = ()
        self._is_cut = False
        self._scan_at_s = -float("inf")
        self.by_id: dict[str, Path | None] = {}  # model_dirs of the rows

    def read(self) -> RunRows:
        """Return the current table, newest first."""
        problem = ""
        jobs: tuple[JobLine, ...] = ()
        try:
            jobs = self._collector.jobs()
        except CsrunError as error:
            problem = str(error)
        rows = [self._ended.get(job.job_id) or self._of_job(job) for job in jobs]
        self._scan()
        used = {os.path.realpath(row.model_dir) for row in rows if row.model_dir}
        rows += [self._of_folder(p) for p in self._folders if os.path.realpath(p) not in used]
        oldest = datetime.min.replace(tzinfo=UTC)
        rows.sort(key=lambda row: (row.begun or oldest, row.id), reverse=True)
        return RunRows(str(self.folder), tuple(rows), self._is_cut, problem)

    def _scan(self) -> None:
        began_s = time.monotonic()
        if began_s < self._scan_at_s:
            return
        folders, self._is_cut = model_dirs_below(self.folder)
        self._folders = tuple(folders)
        ended_s = time.monotonic()
        self._scan_at_s = ended_s + max(SCAN_S, IDLE_SHARE * (ended_s - began_s))

    def _of_job(self, job: JobLine) -> RunRow:
        model_dir = self._model_dir(job)
        key = str(job.job_id)
        self.by_id[key] = model_dir
        row = RunRow(
            key, job.name, job.state, job.job_id, job.user, job.started or job.submitted,
            None if job.is_active else job.elapsed_s or None, why=job.why,
            model_dir=None if model_dir is None else str(model_dir),
        )  # fmt: skip
        if model_dir is not None:
            row = self._with_values(row, model_dir, job.started, job.ended)
        if not job.is_active:
            self._values.pop(key, None)
            self._ended[job.job_id] = row
        return row

    def _model_dir(self, job: JobLine) -> Path | None:
        if job.job_id in self._model_dirs:
            return self._model_dirs[job.job_id]
        if job.started is None or job.user != account_name(os.getuid()):
            return None
        with suppress(CsrunError, OSError):
            folder = JobFolder(self._backend.folder(job.job_id))
            if (found := model_dir_of(JobFile.read(folder.path), folder)) is not None:
                return self._model_dirs.setdefault(job.job_id, found)
        return None

    def _of_folder(self, model_dir: Path) -> RunRow:
        key = folder_id(model_dir)
        self.by_id[key] = model_dir
        known = self._known.get(key)
        if known is not None and known.row.state != RUNNING and known.is_current(model_dir):
            return known.row
        files = event_files(model_dir)
        seen = _FolderRow.stamps_of(model_dir, files[-1:])
        row = self._read_folder(key, model_dir, files)
        self._known[key] = _FolderRow(row, (*files[-1:],), seen)
        return row

    def _read_folder(self, key: str, model_dir: Path, files: Sequence[Path]) -> RunRow:
        inside = model_dir.is_relative_to(self.folder) and model_dir != self.folder
        name = str(model_dir.relative_to(self.folder)) if inside else model_dir.name
        record = performance.read(model_dir)
        row = RunRow(
            key, name, _state(model_dir, files), model_dir=str(model_dir),
            begun=datetime.fromtimestamp(begun_s(files[-1]), UTC) if files else None,
            elapsed_s=None if record is None else record.total_time,
        )  # fmt: skip
        return self._with_values(row, model_dir)

    def _with_values(
        self,
        row: RunRow,
        model_dir: Path,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> RunRow:
        """Return the row with its newest logged values."""
        if (known := self._values.get(row.id)) is not None:
            run = known.progress(None)
        else:
            for extent in (NEWEST_POINTS, BEHIND_HISTOGRAMS):
                self._values[row.id] = RunValues(model_dir, since, until, extent)
                run = self._values[row.id].progress(None)
                if run is not None and run.losses:
                    break
        if run is None:
            return row
        last = run.losses[-1] if run.losses else None
        return msgspec.structs.replace(
            row,
            step=run.step if last is None else last.step,
            loss=None if last is None else last.loss,
            rate=run.rate,
        )


def _state(model_dir: Path, files: Iterable[Path]) -> str:
    """Return the state of a run without a job, by the ages of its files."""
    written_s = max(map(_changed_ns, files), default=0) / 1e9
    ended_s = _changed_ns(performance.path_of(model_dir)) / 1e9
    if ended_s and ended_s >= written_s - 1:
        return FINISHED
    return RUNNING if time.time() - written_s < WRITTEN_S else STOPPED


def _changed_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
