"""Collector of snapshots: asks the scheduler, and reads the files of the job that is shown."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.base.files import account_name, read_end, read_start
from csrun.context import JobFile, Telemetry
from csrun.context.job import now
from csrun.jobs import overview
from csrun.jobs.folder import JobFolder
from csrun.jobs.overview import SystemStatus
from csrun.launch.backend import Backend, JobStatus
from csrun.launch.process.task_output import log_name, visible_ranks
from csrun.records.log_lines import model_dir_in
from csrun.site import Scheduler, Site
from csrun.watch.run_values import RunValues, progress_of
from csrun.watch.site_snapshot import JobDetail, JobLine, RunProgress, SiteSnapshot, TaskLine
from csrun.watch.task_lines import CpuMeter, TasksNow

LOG_BYTES = 1 << 15
LOG_LINES = 200
HEAD_BYTES = 1 << 16  # of a chief's log, whose first lines name model_dir
ASKED_EVERY_S = {Scheduler.LOCAL: 0.0, Scheduler.SLURM: 5.0}  # a controller that others ask, too


class Collector:
    """Collects snapshots of a site; it remembers what it has read of the job that is shown."""

    def __init__(self, site: Site, backend: Backend) -> None:
        self._site = site
        self._backend = backend
        self._asked_s = -float("inf")
        self._systems: tuple[SystemStatus, ...] = ()
        self._jobs: tuple[JobLine, ...] = ()
        self._shown: _ShownJob | None = None

    def snapshot(self, job_id: int | None = None) -> SiteSnapshot:
        """The site now, with this job, else the one that is most likely looked for.

        Raises: UsageError for an unknown job; CsrunError when the scheduler does not answer
        """
        self._ask()
        job = self._find(job_id)
        jobs = self._jobs
        if job is not None and job not in jobs:
            jobs = (job, *jobs)
        detail = None if job is None else self._detail(job)
        return SiteSnapshot(self._site.name, now(), self._systems, jobs, detail)

    def _ask(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s < ASKED_EVERY_S[self._site.scheduler]:
            return
        self._systems = tuple(self._backend.systems())
        self._jobs = tuple(map(_line, self._backend.jobs()))
        self._asked_s = now_s

    def _find(self, job_id: int | None) -> JobLine | None:
        if job_id is None:
            return _first_choice(self._jobs)
        for job in self._jobs:
            if job.job_id == job_id:
                return job
        (status,) = self._backend.jobs(job_id)
        return _line(status)

    def _detail(self, job: JobLine) -> JobDetail:
        if self._shown is None or self._shown.job_id != job.job_id:
            self._shown = _ShownJob(self._site, self._backend, job.job_id)
        return self._shown.detail(job, self._systems)


class _ShownJob:
    """One job whose files are read as they grow."""

    def __init__(self, site: Site, backend: Backend, job_id: int) -> None:
        self._site = site
        self._backend = backend
        self.job_id = job_id
        self._folder = JobFolder(backend.folder(job_id))
        self._meter = CpuMeter()
        self._file: JobFile | None = None
        self._model_dir: Path | None = None
        self._values: RunValues | None = None

    def detail(self, job: JobLine, systems: Sequence[SystemStatus]) -> JobDetail:
        if self._file is None:
            with suppress(CsrunError, OSError):
                self._file = JobFile.read(self._folder.path)
        if self._file is None or not os.access(self._folder.path, os.R_OK | os.X_OK):
            said = self._on_systems(systems)
            run = None if said is None else progress_of((), said)
            return JobDetail(self.job_id, False, str(self._folder.path), run=run)
        telemetry = Telemetry.read(self._file.telemetry_dir(self._folder.path))
        run = self._run(job, self._file, telemetry)  # which finds model_dir
        return JobDetail(
            self.job_id,
            True,
            str(self._folder.path),
            None if self._model_dir is None else str(self._model_dir),
            run,
            self._tasks(job, self._file, "" if telemetry is None else telemetry.straggler),
            self._log(self._file),
        )

    def _on_systems(self, systems: Sequence[SystemStatus]) -> Telemetry | None:
        """Telemetry of another account's job, by the systems that it holds."""
        held = {system.name for system in systems if system.job == self.job_id}
        known = (system for system in self._site.systems if system.name in held)
        return next(filter(None, (overview.telemetry(self._site, each) for each in known)), None)

    def _run(self, job: JobLine, file: JobFile, telemetry: Telemetry | None) -> RunProgress | None:
        if self._values is None and job.started is not None:
            log = read_start(self._folder.log(log_name(0)), HEAD_BYTES)
            if (found := model_dir_in(log)) is not None:
                self._model_dir = Path(file.working_dir) / found
                self._values = RunValues(self._model_dir, job.started, job.ended)
        if self._values is None:
            return None if telemetry is None else progress_of((), telemetry)
        return self._values.progress(telemetry)

    def _tasks(self, job: JobLine, file: JobFile, straggler: str) -> tuple[TaskLine, ...]:
        usages = self._backend.task_usages(job.job_id) if job.is_active else {}
        return TasksNow(file, self._folder, usages, job.is_active, straggler).lines(self._meter)

    def _log(self, file: JobFile) -> tuple[str, ...]:
        text = read_end(self._folder.log(log_name(visible_ranks(file)[0])), LOG_BYTES)
        return tuple(text.splitlines()[-LOG_LINES:])


def _first_choice(jobs: Sequence[JobLine]) -> JobLine | None:
    """This account's newest running job, else any's, else the newest that waits, else the last."""
    own = account_name(os.getuid())

    def rank(job: JobLine) -> tuple[bool, bool, bool, int]:
        runs = job.is_active and job.started is not None
        return runs and job.user == own, runs, job.is_active, job.job_id

    return max(jobs, key=rank, default=None)


def _line(job: JobStatus) -> JobLine:
    until = now() if job.ended is None else job.ended
    elapsed = timedelta(seconds=job.elapsed_s)
    return JobLine(
        job.job_id,
        job.name,
        job.user,
        job.state,
        job.nodes,
        job.system,
        job.submitted,
        until - elapsed if job.elapsed_s else None,
        job.ended,
        job.elapsed_s,
        job.why,
    )
