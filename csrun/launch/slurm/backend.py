"""The scheduler of a cluster, by Slurm's own commands."""

from collections.abc import Callable

from csrun.base.errors import UsageError
from csrun.context import Role
from csrun.jobs.overview import SystemStatus
from csrun.jobs.request import JobRequest
from csrun.launch.backend import Backend
from csrun.launch.plan import JobPlan, plan
from csrun.launch.preview import DryRun, describe
from csrun.launch.slurm import job_logs, run, sinfo, squeue
from csrun.site import Scheduler, Site


class SlurmBackend(Backend):
    """The jobs of a cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def plan(self, request: JobRequest) -> JobPlan:
        """Lay a job out on the CPUs of the site's nodes."""
        if request.detach:
            raise UsageError(
                f"--detach needs a site whose scheduler is {Scheduler.LOCAL}, that of site"
                f" {self._site.name} is {Scheduler.SLURM}: use --sbatch"
            )
        if request.foreground is not None:
            sinfo.require_commands(self._site)
        return plan(request, self._site, tuple(range(self._site.nodes.cpus)))

    def run(self, request: JobRequest, job_plan: JobPlan) -> int:
        """Run a job by srun, or hand it and its compile to sbatch; the exit code."""
        if request.foreground is not None:
            return run.in_foreground(request, request.foreground, self._site)
        return run.run(request, job_plan, self._site)

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """The plan, with srun's line or the script for sbatch."""
        line = run.preview(request, job_plan, self._site)
        return describe(job_plan, self._site, line, sharing=None)

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> list[squeue.SlurmJob]:
        """Those that Slurm still knows, whatever their state."""
        return squeue.jobs(self._site) if job_id is None else [squeue.job(self._site, job_id)]

    def nodes(self) -> list[squeue.SlurmNode]:
        """Of the whole cluster."""
        return squeue.nodes(self._site)

    def systems(self) -> list[SystemStatus]:
        """By whom Slurm gave them to."""
        return squeue.systems(self._site)

    def cancel(self, job_id: int) -> str:
        """Ask Slurm, which does not say when it is over."""
        squeue.cancel(self._site, job_id)
        return "Slurm ends it"

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """From the job's folder, which all nodes share."""
        job_logs.show(self._site, job_id, role, follow, write)


BACKEND = SlurmBackend
