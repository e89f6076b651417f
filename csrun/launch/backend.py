"""Interface of a scheduler: one object of thirteen verbs.

`local` and `slurm` are the two there are; they share `process` and `life` and know nothing of each
other. A third one is a module with a `BACKEND`, a row in `csrun.launch.BACKENDS` and a name in
`site.Scheduler`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from csrun.context import Role
from csrun.jobs.overview import SystemStatus
from csrun.jobs.record import JobRecord
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import JobPlan
from csrun.launch.preflight.checks import CheckResult
from csrun.launch.preview import DryRun
from csrun.site import Site


class JobStatus(Protocol):
    """A job as a table shows it; `-o json` prints the structs that it is made from.

    state: in the scheduler's word. nodes: how many it has, or waits for. system: that it has, or
    had last; empty when there is none. why: what it waits for, or why it did not end well. type:
    compile or execute; empty where the command is not known.
    """

    @property
    def job_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def system(self) -> str: ...
    @property
    def submitted(self) -> datetime: ...
    @property
    def ended(self) -> datetime | None: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def why(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...

    def details(self) -> Iterable[tuple[str, str]]:
        """All there is to say of the job, by name."""


class NodeStatus(Protocol):
    """A node as a table shows it, its state in the scheduler's word. Units: memory_gb in GiB"""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def job_ids(self) -> tuple[int, ...]: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_gb(self) -> int: ...


class Backend(Protocol):
    """The jobs of one site, on its scheduler.

    Raises, from every verb: UsageError for what the user can put right, CsrunError when the
    scheduler does not answer
    """

    def __init__(self, site: Site) -> None: ...

    def plan(self, request: JobRequest) -> JobPlan:
        """Lay a job out on the site's CPUs, refusing what this scheduler never can run."""

    def run(self, request: JobRequest, job_plan: JobPlan) -> int:
        """Run a planned job to its end, or submit it; the exit code."""

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """Describe what `run` would do."""

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> Sequence[JobStatus]:
        """Pending and running jobs, and some or all ended ones; or the job of this number."""

    def records(self) -> Sequence[JobRecord]:
        """csrun's records of all jobs that this account may see, with the systems that they had."""

    def folders(self) -> Sequence[Path]:
        """The folders of this account's jobs that are still there, newest first."""

    def folder(self, job_id: int) -> Path:
        """The folder of one of this account's jobs, which may be gone."""

    def check(self) -> Sequence[CheckResult]:
        """Check that the site is fit to run jobs."""

    def nodes(self) -> Sequence[NodeStatus]:
        """All of the site, and who has them."""

    def systems(self) -> Sequence[SystemStatus]:
        """All CS systems of the site, who has them and who waits for them."""

    def cancel(self, job_id: int, command: str) -> str:
        """End a job in order; what has come of it, for the user to read.

        command: that the user cancels it with, for its record
        """

    def label(self, job_id: int, changes: Sequence[str]) -> Mapping[str, str]:
        """Change labels of one of this account's jobs, as `csrun.jobs.job_labels.changed`; all of
        its labels then.
        """

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """Write the logs of a job's tasks: of a role, else those that its launcher shows.

        `follow` goes on until the job has ended.
        """
