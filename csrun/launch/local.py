"""Scheduler of this machine: node leases, tasks of a fork server, jobs in csrun's register."""

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from csrun import system
from csrun.base import open_files
from csrun.base.errors import UsageError
from csrun.context import Role
from csrun.jobs import overview, queue, register
from csrun.jobs.cancel import cancel
from csrun.jobs.folder import JobFolder, jobs_dir, newest_first, require_disk_space
from csrun.jobs.record import JobRecord, Outcome, RecordState
from csrun.jobs.registered_job import RegisteredJob, refusal_of_unwritable_state, registered
from csrun.jobs.request import JobRequest
from csrun.jobs.signals import raised_as_errors
from csrun.jobs.time_limit import EXIT_TIME_LIMIT, reached
from csrun.launch.backend import Backend
from csrun.launch.job_plan import JobPlan, plan
from csrun.launch.life.job_loop import JobLoop, ending_signals, print_line
from csrun.launch.piped_params import store_piped_params
from csrun.launch.preflight import checks
from csrun.launch.preflight.checks import CheckResult
from csrun.launch.preflight.facts import facts_here
from csrun.launch.preview import DryRun, describe, sharing_of
from csrun.launch.process import job_logs
from csrun.launch.process.detach import detached
from csrun.launch.process.foreground import Ending, ForegroundCommand, run_in_foreground
from csrun.launch.process.output_files import OutputFiles
from csrun.launch.process.process_tree import become_subreaper
from csrun.launch.process.server import start_server
from csrun.launch.process.task_environment import slurm_variables
from csrun.launch.process.task_output import task_output
from csrun.launch.srun import srun_line
from csrun.launch.user_command import UserCommand
from csrun.site import Scheduler, Site


class LocalBackend(Backend):
    """The jobs of this machine."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def plan(self, request: JobRequest) -> JobPlan:
        """Lay out a job on this machine's CPUs."""
        only_slurm = {
            "sbatch": request.sbatch,
            "compile-first": request.compile_first,
            "new-job": request.new_job,
            "slurm-option": request.options.slurm_options,
        }
        for option, is_given in only_slurm.items():
            if is_given:
                raise UsageError(
                    f"--{option} needs scheduler {Scheduler.SLURM}, site {self._site.name} has"
                    f" {self._site.scheduler}: drop the option or choose another --site"
                )
        job_plan = plan(request, self._site, tuple(sorted(os.sched_getaffinity(0))))
        named = UserCommand(job_plan.command).system
        if named is not None and job_plan.system_mode is not None:
            # otherwise its chief would report it
            system.find(self._site, named, job_plan.system_mode)
        if job_plan.system_mode is not None:
            streamers = sum(task.role is Role.STREAMER for task in job_plan.tasks)
            open_files.require(streamers, request.command[0])
        return job_plan

    def run(self, request: JobRequest, job_plan: JobPlan) -> int:
        """Run a job on this machine, including the wait for nodes; return its exit code."""
        if request.detach:
            return detached(lambda leave: self._run(request, job_plan, leave))
        return self._run(request, job_plan, lambda job: None)

    def _run(
        self, request: JobRequest, job_plan: JobPlan, on_registered: Callable[[RegisteredJob], None]
    ) -> int:
        layout, keeps_logs = job_plan.layout, request.foreground is None
        registering = registered(
            self._site,
            request.command,
            request.options,
            layout.nodes,
            len(job_plan.tasks),
            keeps_logs=keeps_logs,
        )
        with raised_as_errors(), registering as job:
            on_registered(job)
            with refusal_of_unwritable_state(self._site):
                allocation = queue.allocate(
                    self._site, layout.nodes, job.job_id, print_line, job.waits_for
                )
            with allocation:
                running = _Running(request, job_plan, self._site, job, allocation)
                outcome = running.in_foreground() if not keeps_logs else running.as_tasks()
                job.end(outcome)
        return outcome.exit_code

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """Return the plan, its command line on a cluster, and its demands on this machine."""
        line = srun_line(
            job_plan.layout, job_plan.command, self._site.gres, request.label, request.options
        )
        return describe(job_plan, self._site, line, sharing_of(job_plan, self._site))

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> list[JobRecord]:
        if job_id is not None:
            return [overview.job(self._site, job_id)]
        return overview.jobs(self._site, all_states)

    def records(self) -> list[JobRecord]:
        return overview.jobs(self._site, all_states=True)

    def folders(self) -> list[Path]:
        return newest_first(jobs_dir(self._site))

    def folder(self, job_id: int) -> Path:
        return jobs_dir(self._site) / str(job_id)

    def check(self) -> list[CheckResult]:
        folder = jobs_dir(self._site)
        return checks.of_one(facts_here(socket.gethostname(), folder), folder)

    def nodes(self) -> list[overview.LocalNode]:
        return overview.nodes(self._site)

    def systems(self) -> list[overview.SystemStatus]:
        return overview.systems(self._site)

    def cancel(self, job_id: int, command: str) -> str:
        """Ask the job's launcher, and wait until it has ended."""
        record = cancel(self._site, job_id, self._site.grace_s, command)
        code = "" if record.exit_code is None else f", exit code {record.exit_code}"
        return f"{record.state}{code}"

    def label(self, job_id: int, changes: Sequence[str]) -> Mapping[str, str]:
        with refusal_of_unwritable_state(self._site):
            return register.label(self._site, job_id, changes)

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """Print the logs in the job folder."""
        job_logs.show(self._site, job_id, role, follow, write)


BACKEND = LocalBackend


class _Running:
    """A job with its nodes."""

    def __init__(
        self,
        request: JobRequest,
        job_plan: JobPlan,
        site: Site,
        job: RegisteredJob,
        allocation: queue.NodeAllocation,
    ) -> None:
        self._request = request
        self._site = site
        self._job = job
        self._allocation = allocation
        self._locks = (*job.locks, *allocation.locks)
        addresses = dict(zip(queue.node_names(site), site.nodes.addresses, strict=False))
        planned = job_plan.job_file(
            request.site, Path.cwd(), job.job_id, allocation.nodes, addresses
        )
        board = str(job.telemetry_dir) if site.shared else None
        self._file = msgspec.structs.replace(planned, board=board)

    def as_tasks(self) -> Outcome:
        """Run the job under a fork server."""
        with refusal_of_unwritable_state(self._site):
            require_disk_space(self._job.folder.path, len(self._file.tasks))
            self._file = store_piped_params(self._request, self._file, self._job.folder.path)
            self._job.folder.prepare(self._file)
        self._job.start(self._allocation.nodes)
        modules = self._request.preload if self._file.mode is not None else ()
        # Tasks of a killed fork server become children of this process, which kills them at the
        # end.
        become_subreaper()
        # output files of --output, one per task
        own_files = open_files.room_for(len(self._file.tasks))
        with ending_signals() as signals, own_files:
            output = task_output(self._file, self._job, self._request.label)
            # It inherits the locks: nodes stay leased while any process of the job lives.
            server = start_server(self._job.folder, modules, self._locks)
            folder, on_restart = self._job.folder, self._job.restarted
            return JobLoop(self._file, folder, server, signals, output, on_restart).run()

    def in_foreground(self) -> Outcome:
        """Run the job's single command on the user's terminal."""
        options, record = self._request.options, self._job.record
        (entry,) = self._file.tasks
        with ExitStack() as files:
            output = None
            if options.output is not None:
                opened = OutputFiles(options.output, record.job_id, record.name, record.user)
                output = files.enter_context(opened).of(entry).fileno()
            self._job.start(self._allocation.nodes)
            command = ForegroundCommand(
                self._request.command,
                {**(self._request.foreground or {}), **slurm_variables(self._file, entry)},
                tuple(lock.fd for lock in self._locks),
                output,
                options.time_limit_s,
                self._site.grace_s,
            )
            ending = run_in_foreground(command)
            return _outcome(ending, options.time_limit_s, self._job.folder)


def _outcome(ending: Ending, time_limit_s: int | None, folder: JobFolder) -> Outcome:
    if ending.timed_out and time_limit_s is not None:
        print_line(f"csrun_cpu: {reached(time_limit_s)}: command terminated")
        return Outcome(RecordState.TIMEOUT, EXIT_TIME_LIMIT, reached(time_limit_s))
    if ending.asked_by is not None:
        reason = folder.reason_of(ending.asked_by)
        if ending.asked_by is signal.SIGTERM:  # after a hang-up there is nobody to tell
            print_line(f"csrun_cpu: {reason}: command terminated")
        return Outcome(RecordState.CANCELLED, ending.exit_code, reason)
    if ending.exit_code:
        return Outcome(RecordState.FAILED, ending.exit_code, f"exit code {ending.exit_code}")
    return Outcome(RecordState.COMPLETED, 0)
