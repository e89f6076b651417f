"""One srun of a job: creates its folder, gathers its nodes, then runs the job as on one machine."""

import os
import selectors
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name
from csrun.base.version import VERSION, differing
from csrun.context import Hosts, JobFile, TaskEntry, environment, jobs_dir_of
from csrun.jobs.folder import JobFolder
from csrun.jobs.registered_job import make_folders, refusal_of_unwritable_state
from csrun.jobs.request import JobRequest
from csrun.jobs.signals import EndedBySignalError
from csrun.launch.job_plan import JobPlan, cpu_set
from csrun.launch.life.job_loop import LOG_POLL_S, JobLoop, ending_signals, print_line
from csrun.launch.piped_params import store_piped_params
from csrun.launch.process.task_output import show
from csrun.launch.slurm import folders, records, shared_register
from csrun.launch.slurm.mailbox import NodeReady
from csrun.launch.slurm.node_agent import COMPLAINT, PLAN_FILE
from csrun.launch.slurm.queue_progress import QueueWatch, job_of
from csrun.launch.slurm.srun_arguments import job_argv, node_agent_argv, one_a_node
from csrun.launch.slurm.srun_process import LOG_NAME, SrunProcess
from csrun.launch.slurm.stop_reason import stop_reason
from csrun.launch.srun import Resources
from csrun.site import Site

VERSION_HERE = "csrun_wse's machine"
NEWS = ("srun: job ", "srun: Required ")  # lines of srun that are shown to a waiting user


def run_step(
    request: JobRequest,
    job_plan: JobPlan,
    site: Site,
    resources: Resources,
    systems: tuple[str, ...],
    given: environment.SlurmAllocation | None,
) -> int:
    """Run the srun in a new job folder to its end; return the exit code."""
    jobs_dir = jobs_dir_of(site.name, site.jobs_dir, site.shared)
    if site.shared or site.jobs_dir is None:
        with refusal_of_unwritable_state(site):
            make_folders(site)
    folder, live = folders.create(jobs_dir)
    try:
        with live:
            return _run_in(folder, request, job_plan, site, resources, systems, given)
    finally:
        with suppress(OSError):
            folders.prune(jobs_dir, site.jobs)


def _run_in(
    folder: JobFolder,
    request: JobRequest,
    job_plan: JobPlan,
    site: Site,
    resources: Resources,
    systems: tuple[str, ...],
    given: environment.SlurmAllocation | None,
) -> int:
    try:
        job = _planned(request, job_plan, systems)
        with _writing(folder):
            folder.create_subfolders()
            job = store_piped_params(request, job, folder.path)
            stored.write(folder.path / PLAN_FILE, job, durable=False)
        command = node_agent_argv(request, job_plan, site, folder)
        argv = job_argv(one_a_node(job_plan), command, resources, given)
        with ending_signals() as signals:
            return _SrunExecution(request, site, job, folder, argv, signals, given).run()
    finally:
        folder.clear()


@contextmanager
def _writing(folder: JobFolder) -> Iterator[None]:
    """Raises: CsrunError for a failed write, for example on a full disk"""
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{folder.path}: job folder cannot be written: {error.strerror}"
        ) from error


class _SrunExecution:
    """One srun of a job, from its start to its end."""

    def __init__(
        self,
        request: JobRequest,
        site: Site,
        planned: JobFile,
        folder: JobFolder,
        argv: tuple[str, ...],
        signals: socket.socket,
        given: environment.SlurmAllocation | None,
    ) -> None:
        self._request = request
        self._site = site
        self._planned = planned
        self._folder = folder
        self._signals = signals
        self._ready: dict[int, NodeReady] = {}
        self._said_bytes = 0
        self._begun_s = monotonic()
        self._watch = QueueWatch(print_line)
        self._step = SrunProcess(
            argv,
            folder,
            planned.nodes,
            owns_job=given is None or not given.is_users,
            frees_job=given is None,
        )

    def run(self) -> int:
        """Run to the end; no process of the job is left when this returns."""
        with ExitStack() as while_it_runs:
            try:
                self._gather()
                require_equal_versions(self._ready.values())
                placed = shared_register.publish(self._site, self._request.name, self._placed())
                job = while_it_runs.enter_context(placed)
                folder, account = self._folder, self._ready[0].account
                record = while_it_runs.enter_context(
                    records.recorded(self._site, self._request, job, folder, account)
                )
                loop = self._begin(job, record)
            except BaseException:
                self._step.cancel()
                raise
            finally:
                self._watch.close()
            outcome = loop.run()
            record.end(outcome)
        return outcome.exit_code

    def _begin(self, job: JobFile, record: records.Recorded) -> JobLoop:
        """Start the job; return its server, with all tasks still to be started."""
        self._step.job = job
        with _writing(self._folder):
            job.write(self._folder.path)
            folder = folders.name_by_id(self._folder, job.job_id)
        options = self._request.options
        named = replace(options, job_name=self._request.name)
        shown = show(job, folder, named, account_name(os.getuid()), self._request.label)
        return JobLoop(
            job,
            folder,
            self._step,
            self._signals,
            shown,
            record.restarted,
            asked_s=self._begun_s,
        )

    def _gather(self) -> None:
        """Wait for all nodes to report; print srun's messages meanwhile."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._step, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            while len(self._ready) < self._planned.nodes:
                for key, _ in selector.select(LOG_POLL_S):
                    if key.fileobj is self._signals:
                        raise EndedBySignalError(self._signals.recv(64)[0])
                    self._take_reports()
                self._show_srun()
                self._watch.poll()
        self._show_srun()

    def _take_reports(self) -> None:
        reports = self._step.reports()
        if reports is None:
            self._show_srun()
            raise self._why_not()
        self._ready.update((ready.node_id, ready) for ready in reports)

    def _why_not(self) -> CsrunError:
        job_id, code = self._step.job_id, self._step.end()
        text = self._folder.log(LOG_NAME).read_text(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith(NEWS)]
        own = [line for line in lines if line.startswith(COMPLAINT)]
        if own:
            return UsageError(own[0].removeprefix(COMPLAINT))
        is_terminated = job_id and code == 128 + signal.SIGTERM
        if is_terminated and (reason := stop_reason(job_id, self._site.grace_s)):
            return EndedBySignalError(signal.SIGTERM, reason)
        said = "\n  ".join(["", *lines])
        return CsrunError(f"srun ended with exit code {code} before the job's tasks ran:{said}")

    def _show_srun(self) -> None:
        with self._folder.log(LOG_NAME).open("rb") as file:
            file.seek(self._said_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._said_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._watch.handle_line(line)
            if not self._step.job_id and (queued := job_of(line)):
                self._step.job_id = queued
                nodes, tasks = self._planned.nodes, len(self._planned.tasks)
                records.record_pending(self._site, self._request, queued, nodes, tasks)
            if line.startswith(NEWS):
                print_line(line)

    def _placed(self) -> JobFile:
        """Return the planned job with the allocated nodes and CPUs of its tasks."""
        job_id, machines = self._ready[0].job_id, {r.machine for r in self._ready.values()}
        hosts = Hosts.SHARED if len(machines) == 1 else Hosts.SEPARATE
        tasks = tuple(self._place(task) for task in self._planned.tasks)
        return msgspec.structs.replace(self._planned, job_id=job_id, tasks=tasks, hosts=hosts)

    def _place(self, task: TaskEntry) -> TaskEntry:
        ready, wanted = self._ready[task.node_id], len(task.cpus)
        cpus = cpu_set(ready.cpus, task.local_rank * wanted, wanted)
        return msgspec.structs.replace(task, node=ready.node, cpus=cpus, address=ready.address)


def require_equal_versions(ready: Iterable[NodeReady]) -> None:
    """Check that all nodes have the same versions of packages that compute.

    Raises: UsageError with the names, versions and nodes that differ
    """
    names = {VERSION_HERE: {"csrun": VERSION}}
    by_node = {each.node: each.versions for each in ready}
    only_csrun = {node: {"csrun": its.get("csrun", "none")} for node, its in by_node.items()}
    found = differing((names | only_csrun).items()) | differing(by_node.items())
    if not found:
        return
    name, by_version = next(iter(found.items()))
    listed = "; ".join(f"{version} on {', '.join(on)}" for version, on in by_version.items())
    others = ", ".join(other for other in found if other != name)
    more = f" (so does {others})" if others else ""
    raise UsageError(
        f"{name} differs between the job's nodes{more}: {listed}\n"
        "install one version on all nodes; 'csrun site check' compares them"
    )


def _planned(request: JobRequest, job_plan: JobPlan, systems: tuple[str, ...]) -> JobFile:
    """Return the planned job before Slurm has assigned a number and nodes."""
    nodes = tuple(f"node id {index}" for index in range(job_plan.layout.nodes))
    return job_plan.job_file(request.site, Path.cwd(), 0, nodes, systems=systems)
