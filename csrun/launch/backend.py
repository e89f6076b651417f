"""Interface of a scheduler: thirteen methods.

`local` and `slurm` implement it. They share `process` and `life` and do not import each other. A
new scheduler is a module with a `BACKEND`, a row in `csrun.launch.BACKENDS` and a name in
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
    """Row of a job in a table; `-o json` prints the structs behind it.

    state: as the scheduler names it.
    nodes: number of nodes that it has, or waits for.
    system: system that it has, or had last; empty if none.
    why: reason why it waits, or why it failed.
    type: compile or execute; empty if the command is not known.
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
        """All details of the job, by name."""


class NodeStatus(Protocol):
    """Row of a node in a table; its state is as the scheduler names it. Units: memory_gb in GiB"""

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
    """Jobs of one site, on its scheduler.

    Raises, in every method: UsageError for an error that the user can fix, CsrunError if the
    scheduler does not answer
    """

    def __init__(self, site: Site) -> None: ...

    def plan(self, request: JobRequest) -> JobPlan:
        """Lay out a job on the site's CPUs; a job that can never run here is an error."""

    def run(self, request: JobRequest, job_plan: JobPlan) -> int:
        """Run a planned job to its end, or submit it; return the exit code."""

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """Describe what `run` would do."""

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> Sequence[JobStatus]:
        """Return pending and running jobs, with some or all of the ended ones; or the job of this
        number.
        """

    def records(self) -> Sequence[JobRecord]:
        """Return csrun's records of all jobs that this account may see, with their systems."""

    def folders(self) -> Sequence[Path]:
        """Return the existing folders of this account's jobs, newest first."""

    def folder(self, job_id: int) -> Path:
        """Return the folder of one of this account's jobs, which may have been deleted."""

    def check(self) -> Sequence[CheckResult]:
        """Check that the site is able to run jobs."""

    def nodes(self) -> Sequence[NodeStatus]:
        """Return the nodes of the site, with their users."""

    def systems(self) -> Sequence[SystemStatus]:
        """Return the CS systems of the site, with their users and the jobs that wait for them."""

    def cancel(self, job_id: int, command: str) -> str:
        """Cancel a job in an orderly way; return what happened, as text.

        command: the user's cancel command, for the job's record
        """

    def label(self, job_id: int, changes: Sequence[str]) -> Mapping[str, str]:
        """Change labels of one of this account's jobs, as `csrun.jobs.job_labels.changed`; return
        all of its labels.
        """

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """Print the logs of a job's tasks: those of a role, else those that its launcher shows.

        follow: continue until the job has ended.
        """
