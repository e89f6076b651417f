"""A job on a cluster, from the checks before it is queued to its exit code."""

import getpass
import os
import selectors
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import msgspec

from csrun import system
from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.context import Hosts, JobFile, TaskEntry, environment, jobs_dir_of
from csrun.jobs.folder import JobFolder, board_dir
from csrun.jobs.registered_job import make_folders, refusal_of_unwritable_state
from csrun.jobs.request import JobRequest
from csrun.jobs.signals import EndedBySignalError
from csrun.launch.command import named_system
from csrun.launch.life.job_loop import LOG_POLL_S, JobLoop, ending_signals, say
from csrun.launch.plan import JobPlan, cpu_set
from csrun.launch.process.foreground import ForegroundCommand, run_in_foreground
from csrun.launch.process.forking import ALWAYS
from csrun.launch.process.task_output import show
from csrun.launch.slurm import (
    allocation,
    batch,
    board,
    folders,
    options,
    requeued,
    sinfo,
    squeue,
    timed_command,
)
from csrun.launch.slurm.attendant import COMPLAINT, PLAN_FILE
from csrun.launch.slurm.mail import NodeReady
from csrun.launch.slurm.step import LOG_NAME, Step
from csrun.launch.slurm.waiting import QueueWatch, job_of
from csrun.launch.srun import (
    Resources,
    after_prolog,
    cpu_words,
    in_container,
    srun_words,
    step_words,
)
from csrun.site import Site

ATTENDANT = "csrun.launch.slurm.attendant"
NEWS = ("srun: job ", "srun: Required ")  # what a person who waits wants to know of srun's lines


def run(request: JobRequest, job_plan: JobPlan, site: Site) -> int:
    """Run a job, or submit it, and what is to be compiled before; the exit code.

    Raises: UsageError when it can never run; CsrunError when Slurm does not answer
    """
    asked = options.of(request.options.slurm_options, site, batch=request.sbatch)
    given = _allocation(request, job_plan, site, asked)
    system = system_of(job_plan, site) if given is None else given.system
    resources = batch.resources_of(request, site.gres_of(system) if system else None, site, asked)
    if given is None:
        partition = environment.partition(asked.partition, batch=request.sbatch)
        sinfo.check(job_plan.layout, site, resources.gres, partition)
    else:
        sinfo.require_commands(site)
    if request.sbatch:
        return batch.scripts(request, job_plan, site, resources, system).submit(site)
    restarted = environment.restarted_job()
    if restarted is not None and given is not None and not given.is_users:
        line = batch.resume_line(request, job_plan.layout)
        requeued.await_old_steps(restarted, site, say, line)
    if request.compile_first:
        compiling, compile_plan = batch.compile_job(request, job_plan)
        alone = replace(resources, gres=None, job_name=compiling.name)
        if code := _run_step(compiling, compile_plan, site, alone, None, given):
            return code
    return _run_step(request, job_plan, site, resources, system, given)


def _allocation(
    request: JobRequest, job_plan: JobPlan, site: Site, asked: options.SlurmOptions
) -> environment.Allocation | None:
    """The job that the tasks run in; None when there is none yet.

    Raises: as `allocation.around`
    """
    given, users_job = environment.allocation(), environment.users_job()
    if given is not None or users_job is None:
        return given
    if request.sbatch or request.new_job:
        environment.leave_users_job()
        return None
    return allocation.around(
        users_job,
        job_plan,
        site,
        lambda gres: batch.resources_of(request, gres, site, asked),
    )


def in_foreground(request: JobRequest, variables: Mapping[str, str], site: Site) -> int:
    """Run one command alone on a node, with the user's terminal; the exit code."""
    command, wanted, grace_s = request.command, request.options, None
    if wanted.time_limit_s is not None:
        grace_s = site.grace_s
        command = timed_command.words(_python(site), wanted.time_limit_s, grace_s, command)
    command = in_container(command, site.container, _mounts(request, site))
    command = after_prolog(command, site.prolog)
    asked = options.of(wanted.slurm_options, site, batch=False)
    resources = Resources(
        job_name=wanted.job_name,
        time_limit_s=wanted.time_limit_s,
        grace_s=grace_s,
        every=asked.every,
        first=asked.first,
    )
    on_terminal = os.isatty(0) and os.isatty(1)
    inside = environment.users_job() is not None  # a job's own nodes are the user's choice
    elsewhere = None if inside else site.gres_node
    words = cpu_words(command, resources, wanted.output, elsewhere, on_terminal)
    return run_in_foreground(ForegroundCommand(words, variables, grace_s=site.grace_s)).exit_code


def preview(request: JobRequest, job_plan: JobPlan, site: Site) -> str:
    """What would be given to Slurm, with the user's command in the attendants' place.

    Raises: UsageError, CsrunError when the job has no system to run on
    """
    asked = options.of(request.options.slurm_options, site, batch=request.sbatch)
    given = _allocation(request, job_plan, site, asked)
    system = system_of(job_plan, site) if given is None else given.system
    resources = batch.resources_of(request, site.gres_of(system) if system else None, site, asked)
    if request.sbatch:
        return batch.scripts(request, job_plan, site, resources, system).text()
    command = in_container(job_plan.command, site.container, _mounts(request, site))
    command = after_prolog(command, site.prolog)
    return shlex.join(_srun(job_plan, command, resources, given))


def _srun(
    job_plan: JobPlan,
    command: tuple[str, ...],
    resources: Resources,
    given: environment.Allocation | None,
) -> tuple[str, ...]:
    if given is None:
        return srun_words(job_plan.layout, command, resources)
    return step_words(job_plan.layout, command, resources, is_whole=given.is_whole)


def _run_step(
    request: JobRequest,
    job_plan: JobPlan,
    site: Site,
    resources: Resources,
    system: str | None,
    given: environment.Allocation | None,
) -> int:
    jobs_dir = jobs_dir_of(site.name, site.jobs_dir, site.shared)
    if site.shared or site.jobs_dir is None:
        with refusal_of_unwritable_state(site):
            make_folders(site)
    folder, live = folders.create(jobs_dir)
    with live:
        folders.prune(jobs_dir)
        try:
            job = _planned(request, job_plan, system)
            with _writing(folder):
                folder.furnish()
                stored.write(folder.path / PLAN_FILE, job, durable=False)
            command = _attendant(request, job_plan, site, folder)
            words = _srun(_one_a_node(job_plan), command, resources, given)
            with ending_signals() as signals:
                return _Run(request, site, job, folder, words, signals, given).run()
        finally:
            folder.clear()


@contextmanager
def _writing(folder: JobFolder) -> Iterator[None]:
    """Raises: CsrunError when there is no place for what is written, as on a full disk"""
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{folder.path}: the job's folder cannot be written: {error.strerror}"
        ) from error


def _one_a_node(job_plan: JobPlan) -> JobPlan:
    """What srun starts: on each node one process, with the CPUs of all the tasks there."""
    layout = job_plan.layout
    cpus = layout.tasks_per_node * layout.cpus_per_task
    whole = replace(layout, tasks_per_node=1, cpus_per_task=cpus, cyclic=False)
    return replace(job_plan, layout=whole)


def _attendant(
    request: JobRequest, job_plan: JobPlan, site: Site, folder: JobFolder
) -> tuple[str, ...]:
    modules = () if job_plan.mode is None else (*ALWAYS, *request.preload)
    attendant = (_python(site), "-P", "-m", ATTENDANT, str(folder.path), ",".join(modules))
    told_in = [str(board_dir(site))] if site.shared else []
    mounts = (*_mounts(request, site), str(folder.path.parent), *told_in)
    command = in_container(attendant, site.container, mounts)
    return after_prolog(command, site.prolog)


def _python(site: Site) -> str:
    """The one that has csrun: the image's own, or ours."""
    return "python" if site.container else sys.executable


def _mounts(request: JobRequest, site: Site) -> tuple[str, ...]:
    return (*site.mount_dirs, *request.mount_dirs, os.getcwd())


class _Run:
    """One srun of a job: until all nodes have reported in, and then as on one machine."""

    def __init__(
        self,
        request: JobRequest,
        site: Site,
        planned: JobFile,
        folder: JobFolder,
        words: tuple[str, ...],
        signals: socket.socket,
        given: environment.Allocation | None,
    ) -> None:
        self._request = request
        self._site = site
        self._planned = planned
        self._folder = folder
        self._signals = signals
        self._ready: dict[int, NodeReady] = {}
        self._said_bytes = 0
        self._begun_s = monotonic()
        self._watch = QueueWatch(say)
        self._step = Step(
            words,
            folder,
            planned.nodes,
            owns_job=given is None or not given.is_users,
            frees_job=given is None,
        )

    def run(self) -> int:
        """Run to the end; nothing of the job lives when this returns."""
        with ExitStack() as while_it_runs:
            try:
                self._gather()
                placed = board.shown(self._site, self._request.name, self._placed())
                job = self._begin(while_it_runs.enter_context(placed))
            except BaseException:
                self._step.cancel()
                raise
            finally:
                self._watch.close()
            return job.run().exit_code

    def _begin(self, job: JobFile) -> JobLoop:
        """What runs the job from here on: all of its tasks wait to be started."""
        self._step.job = job
        with _writing(self._folder):
            job.write(self._folder.path)
            folder = folders.name_by_id(self._folder, job.job_id)
        options = self._request.options
        named = replace(options, job_name=self._request.name)
        shown = show(job, folder, named, getpass.getuser(), self._request.label)
        return JobLoop(
            job,
            folder,
            self._step,
            self._signals,
            shown,
            options.time_limit_s,
            asked_s=self._begun_s,
        )

    def _gather(self) -> None:
        """Wait for all nodes to report in, and show meanwhile what srun has to say."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._step, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            while len(self._ready) < self._planned.nodes:
                for key, _ in selector.select(LOG_POLL_S):
                    if key.fileobj is self._signals:
                        raise EndedBySignalError(self._signals.recv(64)[0])
                    self._take_reports()
                self._show_srun()
                self._watch.look()
        self._show_srun()

    def _take_reports(self) -> None:
        reports = self._step.reports()
        if reports is None:
            self._show_srun()
            raise self._why_not()
        self._ready.update((ready.node_id, ready) for ready in reports)

    def _why_not(self) -> CsrunError:
        code = self._step.end()
        text = self._folder.log(LOG_NAME).read_text(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith(NEWS)]
        own = [line for line in lines if line.startswith(COMPLAINT)]
        if own:
            return UsageError(own[0].removeprefix(COMPLAINT))
        said = "\n  ".join(["", *lines])
        return CsrunError(f"srun ended with exit code {code} before the job's tasks ran:{said}")

    def _show_srun(self) -> None:
        with self._folder.log(LOG_NAME).open("rb") as file:
            file.seek(self._said_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._said_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._watch.hear(line)
            self._step.job_id = self._step.job_id or job_of(line)
            if line.startswith(NEWS):
                say(line)

    def _placed(self) -> JobFile:
        """The planned job with the nodes and CPUs that its tasks were given."""
        job_id, machines = self._ready[0].job_id, {r.machine for r in self._ready.values()}
        hosts = Hosts.SHARED if len(machines) == 1 else Hosts.SEPARATE
        tasks = tuple(self._place(task) for task in self._planned.tasks)
        return msgspec.structs.replace(self._planned, job_id=job_id, tasks=tasks, hosts=hosts)

    def _place(self, task: TaskEntry) -> TaskEntry:
        ready, wanted = self._ready[task.node_id], len(task.cpus)
        cpus = cpu_set(ready.cpus, task.local_rank * wanted, wanted)
        return msgspec.structs.replace(task, node=ready.node, cpus=cpus, address=ready.address)


def _planned(request: JobRequest, job_plan: JobPlan, system: str | None) -> JobFile:
    """The job before Slurm has given it a number and nodes."""
    nodes = tuple(f"node id {index}" for index in range(job_plan.layout.nodes))
    return job_plan.job_file(request.site, Path.cwd(), 0, nodes, system=system)


def system_of(job_plan: JobPlan, site: Site) -> str | None:
    """The system that the command names, or the one with the fewest jobs; None when it needs none.

    Raises: UsageError, CsrunError when it is unknown, in another mode, or not ACTIVE
    """
    mode, named = job_plan.system_mode, named_system(job_plan.command)
    if mode is None:
        return None
    choice = system.in_mode(site, mode)
    if named is not None or len(choice) < 2:
        return system.find(site, named, mode).name
    users = {status.name: status.users for status in squeue.systems(site)}
    found = system.find(site, None, mode, users=lambda _, each: users[each.name])
    others = ", ".join(f"{each.name} has {users[each.name]}" for each in choice)
    say(f"csrun_wse: the job asks for {found.name}, which has the fewest jobs: {others}")
    return found.name
