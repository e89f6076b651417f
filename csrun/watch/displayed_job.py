"""Displayed job: its run, tasks and log, from its files as they grow."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.base.files import read_end, read_start
from csrun.context import JobFile, Telemetry
from csrun.jobs import overview
from csrun.jobs.folder import JobFolder
from csrun.jobs.overview import SystemStatus
from csrun.launch.backend import Backend
from csrun.launch.process.task_output import log_name, visible_ranks
from csrun.launch.process.usage_log import LoadSample, UsageReader
from csrun.records.log_lines import model_dir_in
from csrun.site import Site
from csrun.watch.logged_steps import LoggedSteps
from csrun.watch.run_values import NEWEST, Extent, RunValues, progress_of
from csrun.watch.site_snapshot import JobDetail, JobLine, RunProgress, TaskLine
from csrun.watch.task_lines import TaskSnapshot

LOG_BYTES = 1 << 15
LOG_LINES = 200
HEAD_BYTES = 1 << 16  # bytes of a chief's log, whose first lines name model_dir


def model_dir_of(file: JobFile, folder: JobFolder) -> Path | None:
    """Return the folder that a job's run writes to; None before its chief has logged it."""
    found = model_dir_in(read_start(folder.log(log_name(0)), HEAD_BYTES))
    return None if found is None else Path(file.working_dir) / found


class DisplayedJob:
    """One job whose files are read as they grow."""

    def __init__(self, site: Site, backend: Backend, job_id: int, extent: Extent = NEWEST) -> None:
        self._site = site
        self.job_id = job_id
        self._folder = JobFolder(backend.folder(job_id))
        self._usage = UsageReader(self._folder.path)
        self._file: JobFile | None = None
        self._model_dir: Path | None = None
        self._extent = extent
        self._values: RunValues | None = None

    def detail(self, job: JobLine, systems: Sequence[SystemStatus]) -> JobDetail:
        if self._file is None:
            with suppress(CsrunError, OSError):
                self._file = JobFile.read(self._folder.path)
        if self._file is None or not os.access(self._folder.path, os.R_OK | os.X_OK):
            said = self._on_systems(systems)
            run = None if said is None else progress_of(LoggedSteps(), said)
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

    @property
    def logged(self) -> LoggedSteps:
        """Steps that the latest `detail` has read."""
        return LoggedSteps() if self._values is None else self._values.logged

    def usage(self) -> list[LoadSample]:
        """Use of CPU and memory by the tasks since the job's start."""
        return self._usage.history()

    def _on_systems(self, systems: Sequence[SystemStatus]) -> Telemetry | None:
        """Return the telemetry of another account's job, by the systems that it holds."""
        held = {system.name for system in systems if system.job == self.job_id}
        known = (system for system in self._site.systems if system.name in held)
        return next(filter(None, (overview.telemetry(self._site, each) for each in known)), None)

    def _run(self, job: JobLine, file: JobFile, telemetry: Telemetry | None) -> RunProgress | None:
        if self._values is None and job.started is not None:
            self._model_dir = model_dir_of(file, self._folder)
            if self._model_dir is not None:
                self._values = RunValues(self._model_dir, job.started, job.ended, self._extent)
        if self._values is None:
            return None if telemetry is None else progress_of(LoggedSteps(), telemetry)
        if job.ended is not None:
            self._values.end(job.ended)
        return self._values.progress(telemetry)

    def _tasks(self, job: JobLine, file: JobFile, straggler: str) -> tuple[TaskLine, ...]:
        loads = self._usage.newest() if job.is_active else {}
        sampled = self._usage.sampled_logs()
        return TaskSnapshot(
            file, self._folder, loads, sampled, job.is_active, straggler, job.why
        ).lines()

    def _log(self, file: JobFile) -> tuple[str, ...]:
        text = read_end(self._folder.log(log_name(visible_ranks(file)[0])), LOG_BYTES)
        return tuple(text.splitlines()[-LOG_LINES:])
