"""Event loop of a running job: passes events to the job state and executes its instructions.

A `TaskServer` starts and reaps the tasks: the fork server of this machine, or srun on a cluster.
Both backends therefore run a job by this loop without depending on each other.
"""

import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from csrun.base.errors import CsrunError, OutputError
from csrun.base.safe_text import printable
from csrun.base.streams import keep_errors_in
from csrun.context import JobFile, Progress, SpawnWafer, Telemetry
from csrun.jobs import time_limit
from csrun.jobs.folder import LAUNCHER_LOG, JobFolder, missing_disk_space
from csrun.jobs.record import Outcome, outcome_of
from csrun.jobs.signals import ENDING_SIGNALS, handled_signals
from csrun.launch.first_cause import TaskEnd, describe_cause, describe_exit, summarize
from csrun.launch.life.job_state import (
    DeadlinePassed,
    Event,
    Finish,
    Instruction,
    Interrupted,
    JobState,
    Restart,
    Send,
    ServerLost,
    Start,
    TaskExited,
    TimeLimitReached,
    WaferRequested,
    Wait,
)
from csrun.launch.process.process_tree import kill_descendants
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded, TasksReady
from csrun.launch.process.server import TaskServer
from csrun.launch.process.task_output import TaskOutput

LOG_POLL_S = 0.05  # 20 Hz, smooth progress display
MANY_TASKS = 32  # seconds after which a message says that all tasks are alive


class JobLoop:
    """Loop of one running job: waits for events, asks the state for instructions, executes them."""

    def __init__(
        self,
        job: JobFile,
        folder: JobFolder,
        server: TaskServer,
        signals: socket.socket,
        output: TaskOutput,
        on_restart: Callable[[str], None] = lambda cause: None,
        asked_s: float | None = None,
    ) -> None:
        self._folder = folder
        keep_errors_in(folder.log(LAUNCHER_LOG))
        self._telemetry_dir = job.telemetry_dir(folder.path)
        self._server = server
        self._signals = signals
        self._state = JobState(job)
        self._tasks = len(job.tasks)
        self._max_restarts = job.max_restarts
        self._on_restart = on_restart
        self._step: int | None = None
        self._output = output
        self._report_names: dict[str, str] = {}
        self._deadline_s: float | None = None
        self._is_finished = False
        self._stopped_by = ""  # reason for which the scheduler signalled the tasks
        self._output_error: OutputError | None = None
        begun_s = monotonic()
        self._asked_s = begun_s if asked_s is None else asked_s  # for the tasks to start
        self._time_limit_s = job.time_limit_s
        self._limit_at_s = inf if job.time_limit_s is None else begun_s + job.time_limit_s

    def run(self) -> Outcome:
        """Run to the end; no process of the job is left when this returns.

        Raises: OutputError if the job was ended because its output could not be written
        """
        try:
            for instruction in self._state.begin():
                self._do(instruction)
            with selectors.DefaultSelector() as selector:
                selector.register(self._server, selectors.EVENT_READ, self._from_server)
                selector.register(self._signals, selectors.EVENT_READ, self._from_signals)
                while not self._is_finished:
                    self._poll_once(selector)
        except BaseException as error:
            self._clean_up(outcome_of(error))
            raise
        self._clean_up(Outcome(self._state.outcome, self._state.exit_code, self._cause_line()))
        if self._output_error is not None:
            raise self._output_error
        self._print_cause()
        return Outcome(self._state.outcome, self._state.exit_code, self._cause_line())

    def _clean_up(self, outcome: Outcome) -> None:
        """End all processes of the job before the cause is determined, which may fail, too."""
        try:
            self._server.end(outcome)
        finally:
            kill_descendants()
            self._forward(is_last=True)
            self._output.close()

    def _poll_once(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(LOG_POLL_S):
            for event in key.data():
                self._handle(event)
        now_s = monotonic()
        self._read_step()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            self._deadline_s = None
            self._handle(DeadlinePassed(now_s))
        if now_s >= self._limit_at_s:
            self._limit_at_s = inf
            self._handle(TimeLimitReached(now_s))
        self._forward()

    def _forward(self, is_last: bool = False) -> None:
        """Forward the tasks' output; a closed pipe does not affect the job, whose logs are
        complete.

        A full disk ends the job, because its output files must be complete.
        """
        try:
            self._output.forward(is_last)
        except OutputError as error:
            self._output.give_up()
            if error.is_unread:
                print_line(
                    f"csrun_wse: {error}: the tasks' output is in {self._folder.path / 'logs'}"
                )
            elif self._state.signum is None:
                self._output_error = error
                self._handle(Interrupted(signal.SIGPIPE, monotonic()))

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
                if reason := self._ending():
                    self._folder.write_reason_to_end(reason)
                self._send(SignalTasks(names, signum))
            case Wait(seconds):
                self._deadline_s = monotonic() + seconds
            case Restart(cause, number):
                self._prepare_restart(cause, number)
            case Finish():
                self._is_finished = True

    def _prepare_restart(self, cause: TaskEnd, number: int) -> None:
        self._forward(is_last=True)
        shown = self._output.was_on_console(cause.name)
        print_line(describe_cause(cause, self._folder.log(cause.name), shown))
        print_line(f"csrun_wse: restart {number} of {self._max_restarts}: restarting all tasks")
        self._deadline_s = self._step = None
        try:
            self._folder.renew()
        except OSError as error:
            raise _restart_error(error, self._folder, cause) from error
        self._output.resume_after_restart()
        self._on_restart(summarize(cause))

    def _read_step(self) -> None:
        """Store the training's step from the chief's telemetry; the file is deleted when the chief
        ends.
        """
        # Only the decision about a restart needs the step; otherwise no file is read.
        if self._max_restarts:
            said = Telemetry.read(self._telemetry_dir)
            self._step = self._step if said is None else said.step

    def _send(self, message: StartTask | SignalTasks) -> None:
        try:
            self._server.send(message)
        except OSError:
            return  # the server has died; reading from it returns its exit code

    def _from_server(self) -> Iterator[Event]:
        messages = self._server.receive()
        if messages is None:
            yield ServerLost(self._server.end())
        for message in messages or ():
            match message:
                case TaskEnded():
                    # A node agent sends the report; with a fork server it is in the job folder.
                    report = message.report or self._folder.report(self._report_names[message.name])
                    yield TaskExited(
                        message.name,
                        message.exit_code,
                        message.time_s,
                        report,
                        self._step,
                        message.is_lost,
                    )
                case TasksReady():
                    _print_ready(message.tasks, message.time_s - self._asked_s)
                case Stopped():
                    self._query_scheduler(message.signum)
                    yield Interrupted(message.signum, message.time_s, by_scheduler=True)
                case SpawnWafer():
                    yield WaferRequested(message.system, message.run)
                case Progress():
                    self._output.progress(message)

    def _from_signals(self) -> Iterator[Event]:
        for signum in self._signals.recv(64):
            if signum in ENDING_SIGNALS:
                now_s = monotonic()
                self._query_scheduler(signum)
                yield Interrupted(signum, now_s)

    def _query_scheduler(self, signum: int) -> None:
        """Keep what the scheduler ends the job for, if it is its signal, not that of a user who
        cancels the job.
        """
        is_first = self._state.signum is None and signum == signal.SIGTERM
        if is_first and not self._folder.cancellation:
            self._stopped_by = self._server.describe_stop()

    def _print_cause(self) -> None:
        state, cause = self._state, self._state.cause
        if cause is not None:
            shown = self._output.was_on_console(cause.name)
            print_line(describe_cause(cause, self._folder.log(cause.name), shown))
            if reason := self._disk_full_reason():
                print_line(f"csrun_wse: error: {reason}")
        elif state.server_exit_code is not None:
            print_line(self._server.describe_loss(state.server_exit_code, self._folder))
        elif ending := self._ending():
            print_line(f"csrun_wse: {ending}: job terminated; logs: {self._folder.path / 'logs'}")

    def _cause_line(self) -> str:
        """Return the reason of the failure, for the job's record."""
        if self._state.cause is not None:
            return self._disk_full_reason() or summarize(self._state.cause)
        if self._state.server_exit_code is not None:
            return f"{self._server.name} {describe_exit(self._state.server_exit_code)}"
        return self._ending()

    def _disk_full_reason(self) -> str | None:
        """Return the reason why a task could not write its report: a full disk."""
        cause = self._state.cause
        if cause is None or cause.report is not None:
            return None
        try:
            return missing_disk_space(self._folder.path, self._tasks)
        except OSError:  # the disk does not respond: only the exit is known
            return None

    def _ending(self) -> str:
        """Return the event that ended a job without a failure; empty if there was none."""
        if self._state.timed_out and self._time_limit_s:
            return time_limit.reached(self._time_limit_s)
        signum = self._state.signum
        return "" if signum is None else self._folder.reason_of(signum, self._stopped_by)


def _restart_error(error: OSError, folder: JobFolder, cause: TaskEnd) -> CsrunError:
    """Return the error for a failed restart; it carries the exit code of the failure before it."""
    refusal = CsrunError(
        f"{error.filename or folder.path}: cannot be written: {error.strerror}: no restart after"
        f" {summarize(cause)}; free some space and start the job again"
    )
    refusal.exit_code = cause.job_exit_code
    return refusal


def print_line(text: str) -> None:
    """Print a line of the launcher, after the tasks' output so far."""
    sys.stdout.flush()
    print(printable(text), file=sys.stderr, flush=True)


def _print_ready(tasks: int, after_s: float) -> None:
    """Report that all tasks are alive, in jobs large enough for a noticeable wait."""
    if tasks >= MANY_TASKS:
        print_line(f"csrun_wse: all {tasks} tasks started after {after_s:.2f} s")


@contextmanager
def ending_signals() -> Iterator[socket.socket]:
    """Return a socket that receives the number of every signal to end."""
    reader, writer = socket.socketpair()
    # required by signal.set_wakeup_fd: a full socket must not block in a signal handler
    writer.setblocking(False)
    old_wakeup = signal.set_wakeup_fd(writer.fileno())
    # Only signals with a Python handler are written to the wakeup descriptor.
    old = {signum: signal.signal(signum, lambda *_: None) for signum in handled_signals()}
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for signum, handler in old.items():
            signal.signal(signum, handler)
        reader.close()
        writer.close()
