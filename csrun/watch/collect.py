"""Collector of snapshots: queries the scheduler, and reads the files of the displayed job."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta

from csrun.base.files import account_name
from csrun.context.job import now
from csrun.jobs.overview import SystemStatus
from csrun.launch.backend import Backend, JobStatus
from csrun.launch.process.usage_log import LoadSample
from csrun.site import Scheduler, Site
from csrun.watch.displayed_job import DisplayedJob
from csrun.watch.logged_steps import LoggedSteps
from csrun.watch.run_values import NEWEST, Extent
from csrun.watch.site_snapshot import JobDetail, JobLine, SiteSnapshot

MOST_SHOWN = 8  # jobs whose files stay open
# a controller that serves other users, too
QUERY_EVERY_S = {Scheduler.LOCAL: 0.0, Scheduler.SLURM: 5.0}


class Collector:
    """Collector of snapshots of a site, with a cache of the displayed jobs' files.

    all_states: include all ended jobs, not only the last ones.
    extent: of the events that are read.
    """

    def __init__(
        self,
        site: Site,
        backend: Backend,
        *,
        all_states: bool = False,
        extent: Extent = NEWEST,
    ) -> None:
        self._site = site
        self._backend = backend
        self._all_states, self._extent = all_states, extent
        self._queried_s = -float("inf")
        self._systems: tuple[SystemStatus, ...] = ()
        self._jobs: tuple[JobLine, ...] = ()
        self._shown: dict[int, DisplayedJob] = {}

    def snapshot(self, job_id: int | None = None) -> SiteSnapshot:
        """Return the current state of the site, with this job, or else the most relevant one.

        Raises: UsageError for an unknown job; CsrunError if the scheduler does not answer
        """
        self._query()
        job = self._find(job_id)
        jobs = self._jobs
        if job is not None and job not in jobs:
            jobs = (job, *jobs)
        detail = None if job is None else self._detail(job)
        return SiteSnapshot(self._site.name, now(), self._systems, jobs, detail)

    def jobs(self) -> tuple[JobLine, ...]:
        """Return the current jobs of the site. Raises: CsrunError if the scheduler does not
        answer
        """
        self._query()
        return self._jobs

    def logged(self, job_id: int) -> LoggedSteps:
        """Steps that this job's latest snapshot has read."""
        shown = self._shown.get(job_id)
        return LoggedSteps() if shown is None else shown.logged

    def usage(self, job_id: int) -> list[LoadSample]:
        """Return the use of CPU and memory by the tasks of a job from a snapshot."""
        shown = self._shown.get(job_id)
        return [] if shown is None else shown.usage()

    def _query(self) -> None:
        now_s = time.monotonic()
        if now_s - self._queried_s < QUERY_EVERY_S[self._site.scheduler]:
            return
        self._systems = tuple(self._backend.systems())
        self._jobs = tuple(map(_line, self._backend.jobs(all_states=self._all_states)))
        self._queried_s = now_s

    def _find(self, job_id: int | None) -> JobLine | None:
        if job_id is None:
            return _first_choice(self._jobs)
        for job in self._jobs:
            if job.job_id == job_id:
                return job
        (status,) = self._backend.jobs(job_id)
        return _line(status)

    def _detail(self, job: JobLine) -> JobDetail:
        shown = self._shown.pop(job.job_id, None)
        if shown is None:
            shown = DisplayedJob(self._site, self._backend, job.job_id, self._extent)
        self._shown[job.job_id] = shown
        if len(self._shown) > MOST_SHOWN:
            del self._shown[next(iter(self._shown))]  # the job that was displayed longest ago
        return shown.detail(job, self._systems)


def _first_choice(jobs: Sequence[JobLine]) -> JobLine | None:
    """Select this account's newest running job, else anyone's, else the newest pending one, else
    the last.
    """
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
