"""Running a job on this machine: the shell around `state`, doing what it says."""

import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import msgspec

from csrun.context import Hosts, JobFile, Progress, Role, SpawnWafer
from csrun.errors import OutputError
from csrun.launch import queue
from csrun.launch.failure import describe_cause
from csrun.launch.folder import JobFolder, create, jobs_dir_of, prune
from csrun.launch.logs import Console, LogTail
from csrun.launch.plan import JobPlan, plan
from csrun.launch.prctl import become_subreaper
from csrun.launch.protocol import SignalTasks, StartTask, Stopped, TaskEnded, TasksReady
from csrun.launch.request import JobRequest
from csrun.launch.server import TaskServer, start_server
from csrun.launch.state import (
    DeadlinePassed,
    Event,
    Finish,
    Instruction,
    Interrupted,
    JobState,
    Send,
    ServerLost,
    Start,
    TaskExited,
    WaferRequested,
    Wait,
)
from csrun.launch.tree import kill_descendants
from csrun.site import Site
from csrun.system import FileLock

LOG_POLL_S = 0.05  # 20 Hz: smooth to the eye
MANY_TASKS = 32  # from here on a person wants to hear that all of them live
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def plan_job(request: JobRequest, site: Site) -> JobPlan:
    """Lay a job out on this machine's CPUs.

    Raises: UsageError for a layout that is not possible
    """
    return plan(request, site, tuple(sorted(os.sched_getaffinity(0))))


def run(request: JobRequest, job_plan: JobPlan, site: Site) -> int:
    """Run a job on this machine, from waiting for nodes to its exit code."""
    jobs_dir = jobs_dir_of(site.name)
    job_id = queue.next_job_id(site)
    folder, live = create(jobs_dir, job_id, f"job {job_id} (process {os.getpid()})")
    with live:
        prune(jobs_dir)
        try:
            allocation = queue.allocate(site, job_plan.layout.nodes, job_id, _say)
            with allocation:
                folder.prepare(_job_file(request, job_plan, site, job_id, allocation.nodes))
                return _run_allocated(request, folder, (live, *allocation.locks))
        finally:
            folder.clear()


def _run_allocated(request: JobRequest, folder: JobFolder, locks: tuple[FileLock, ...]) -> int:
    job = JobFile.read(folder.path)
    modules = request.preload if job.mode is not None else ()
    become_subreaper()
    with ending_signals() as signals:
        server = start_server(folder, modules, locks)
        return LocalJob(job, folder, server, signals, request.label).run()


class LocalJob:
    """One job while it runs: waits for events, asks the state what to do, and does it."""

    def __init__(
        self,
        job: JobFile,
        folder: JobFolder,
        server: TaskServer,
        signals: socket.socket,
        label: bool,
    ) -> None:
        self._folder = folder
        self._server = server
        self._signals = signals
        self._state = JobState(job)
        self._console = Console()
        shown = range(len(job.tasks)) if label else _shown_ranks(job)
        labels = [f"{rank:{len(str(len(job.tasks) - 1))}}: " if label else "" for rank in shown]
        self._tails = {
            _name(rank): self._tail(rank, text) for rank, text in zip(shown, labels, strict=True)
        }
        self._report_names: dict[str, str] = {}
        self._deadline_s: float | None = None
        self._is_finished = False
        self._output_error: OutputError | None = None
        self._begun_s = monotonic()

    def run(self) -> int:
        """Run to the end; nothing of the job lives when this returns.

        Raises: OutputError when the job was ended for want of a place to show it
        """
        try:
            for instruction in self._state.begin():
                self._do(instruction)
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ, self._from_server)
                selector.register(self._signals, selectors.EVENT_READ, self._from_signals)
                while not self._is_finished:
                    self._turn(selector)
        finally:
            self._server.end()
            kill_descendants()
            self._forward(is_last=True)
            self._console.close()
        if self._output_error is not None:
            raise self._output_error
        self._say_why()
        return self._state.exit_code

    def _turn(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(LOG_POLL_S):
            for event in key.data():
                self._handle(event)
        now_s = monotonic()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            self._handle(DeadlinePassed(now_s))
        try:
            self._forward()
        except OutputError as error:
            self._output_lost(error, now_s)

    def _output_lost(self, error: OutputError, now_s: float) -> None:
        self._tails.clear()
        if self._state.signum is None:  # Ctrl-C may have ended our reader, too
            self._output_error = error
            self._handle(Interrupted(signal.SIGPIPE, now_s))

    def _handle(self, event: Event) -> None:
        if self._is_finished:
            return
        for instruction in self._state.handle(event):
            self._do(instruction)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Start(task):
                self._report_names[task.name] = task.report_name
                self._send(task)
            case Send(names, signum):
                self._send(SignalTasks(names, signum))
            case Wait(seconds):
                self._deadline_s = monotonic() + seconds
            case Finish():
                self._is_finished = True

    def _send(self, message: StartTask | SignalTasks) -> None:
        try:
            self._server.send(message)
        except OSError:
            return  # the server is gone; reading from it says so, with its exit code

    def _from_server(self) -> Iterator[Event]:
        messages = self._server.receive()
        if messages is None:
            yield ServerLost(self._server.end())
        for message in messages or ():
            match message:
                case TaskEnded():
                    report = message.report or self._folder.report(self._report_names[message.name])
                    yield TaskExited(message.name, message.exit_code, message.time_s, report)
                case TasksReady():
                    self._say_ready(message)
                case Stopped():
                    yield Interrupted(message.signum, monotonic())
                case SpawnWafer():
                    yield WaferRequested(message.system, message.argv)
                case Progress():
                    self._console.progress(message)

    def _from_signals(self) -> Iterator[Event]:
        for signum in self._signals.recv(64):
            if signum in ENDING_SIGNALS:
                yield Interrupted(signum, monotonic())

    def _tail(self, rank: int, label: str) -> LogTail:
        log = self._folder.log(_name(rank))
        return LogTail(log, lambda: self._folder.report(str(rank)), label)

    def _forward(self, is_last: bool = False) -> None:
        for tail in self._tails.values():
            while data := tail.read():
                self._console.write(data)
            if is_last:
                self._console.write(tail.read(is_last=True))

    def _say_ready(self, ready: TasksReady) -> None:
        if ready.tasks >= MANY_TASKS:
            seconds = ready.time_s - self._begun_s
            _say(f"csrun_wse: {ready.tasks} tasks reported in after {seconds:.2f} s")

    def _say_why(self) -> None:
        state, cause = self._state, self._state.cause
        if cause is not None:
            shown = cause.name in self._tails
            _say(describe_cause(cause, self._folder.log(cause.name), shown))
        elif state.server_exit_code is not None:
            _say(self._server.describe_loss(state.server_exit_code, self._folder))
        elif state.signum is not None:
            name = signal.Signals(state.signum).name
            _say(f"csrun_wse: {name}: the job was ended; logs: {self._folder.path / 'logs'}")


def _job_file(
    request: JobRequest, job_plan: JobPlan, site: Site, job_id: int, nodes: tuple[str, ...]
) -> JobFile:
    addresses = dict(zip(queue.node_names(site), site.nodes.addresses, strict=False))
    tasks = job_plan.entries(nodes)
    return JobFile(
        job_id=job_id,
        mode=job_plan.mode,
        command=job_plan.command,
        working_dir=str(Path.cwd()),
        site=request.site,
        nodes=job_plan.layout.nodes,
        cpus_per_task=job_plan.layout.cpus_per_task,
        tasks=tuple(
            msgspec.structs.replace(task, address=addresses.get(task.node, "")) for task in tasks
        ),
        hosts=Hosts.SEPARATE if addresses else Hosts.SHARED,
    )


def _shown_ranks(job: JobFile) -> list[int]:
    """The chief's log speaks for a training; of another command, every task's does."""
    return [task.rank for task in job.tasks if task.role in (Role.CHIEF, Role.TASK)]


def _name(rank: int) -> str:
    return StartTask(rank, ()).name


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


@contextmanager
def ending_signals() -> Iterator[socket.socket]:
    """A socket that gets the number of every signal that asks to end."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    old_wakeup = signal.set_wakeup_fd(writer.fileno())
    wanted = [s for s in ENDING_SIGNALS if s != signal.SIGHUP or not _is_ignored(s)]  # nohup
    old = {signum: signal.signal(signum, lambda *_: None) for signum in wanted}
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for signum, handler in old.items():
            signal.signal(signum, handler)
        reader.close()
        writer.close()


def _is_ignored(signum: signal.Signals) -> bool:
    return signal.getsignal(signum) is signal.SIG_IGN
