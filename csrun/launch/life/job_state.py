"""State machine of a job: events in, instructions out; without I/O and clock.

Ends of a job, and the signals to its tasks:

- A task fails (TaskExited): the others have COLLECT_S to report an earlier cause. If tasks have
  only lost a peer that still runs, that peer has up to LOST_PEER_S to report and exit. Then all
  tasks get SIGTERM, and SIGKILL after FAILURE_GRACE_S.
- Ctrl-C, SIGTERM, a hang-up, a cancel (Interrupted) or the time limit (TimeLimitReached): all tasks
  get SIGTERM, and SIGKILL after the site's `grace_s`. `csrun.context.deferred_termination` handles
  the signal: the chief of a training saves at the next step boundary and ends; its peers defer the
  signal until then. When the chief's process has ended, the remaining tasks get SIGTERM again,
  which makes them check their connection to the chief.
- A repetition after BURST_S: SIGKILL immediately, unless Slurm has already signalled the tasks
  (scancel, its own limit), because the same scancel also signals the launcher of a batch job.
- The chief succeeds: its peers get its Stop message and end without a signal.

After a failure, when all tasks have ended, a job with `max_restarts` restarts all of them with
their commands, and a training resumes from its newest checkpoint. There is no restart after a user
error (exit code 2), a signal, a time limit, the loss of a node, or the same first cause at the same
step twice.

The exit code is that of the first cause, else 128 + signal, else that of the time limit.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from signal import SIGKILL, SIGTERM

from csrun.base.errors import UsageError, shell_code
from csrun.base.mode import BURST_S
from csrun.context import JobFile, Role, TaskReport
from csrun.context.job import peer_name
from csrun.jobs.record import RecordState
from csrun.jobs.time_limit import EXIT_TIME_LIMIT
from csrun.launch.first_cause import TaskEnd, first_cause, summarize
from csrun.launch.process.protocol import StartTask

# time for survivors to report that they only lost a peer, and for an earlier cause to arrive
COLLECT_S = 0.3
LOST_PEER_S = 10.0  # for a lost peer to unwind its stack and exit, on an overloaded machine
FAILURE_GRACE_S = 2.0  # from SIGTERM to SIGKILL after a failure: enough to discard a checkpoint


class JobPhase(Enum):
    """Phase of a job."""

    RUNNING = auto()
    COLLECTING = auto()  # a task failed; reports of its peers may still arrive
    AWAITING_LOST = auto()  # tasks lost a peer that still runs; no other cause is known
    STOPPING = auto()  # SIGTERM was sent
    KILLING = auto()  # SIGKILL was sent
    ENDED = auto()


TRANSITIONS = frozenset(
    {
        (JobPhase.RUNNING, JobPhase.COLLECTING),
        (JobPhase.RUNNING, JobPhase.STOPPING),
        (JobPhase.RUNNING, JobPhase.ENDED),
        (JobPhase.COLLECTING, JobPhase.AWAITING_LOST),
        (JobPhase.COLLECTING, JobPhase.STOPPING),
        (JobPhase.COLLECTING, JobPhase.ENDED),
        (JobPhase.AWAITING_LOST, JobPhase.COLLECTING),
        (JobPhase.AWAITING_LOST, JobPhase.STOPPING),
        (JobPhase.AWAITING_LOST, JobPhase.ENDED),
        (JobPhase.STOPPING, JobPhase.KILLING),
        (JobPhase.STOPPING, JobPhase.ENDED),
        (JobPhase.KILLING, JobPhase.ENDED),
        (JobPhase.RUNNING, JobPhase.RUNNING),  # transitions of a restart
        (JobPhase.COLLECTING, JobPhase.RUNNING),
        (JobPhase.AWAITING_LOST, JobPhase.RUNNING),
        (JobPhase.STOPPING, JobPhase.RUNNING),
        (JobPhase.KILLING, JobPhase.RUNNING),
    }
)


@dataclass(frozen=True)
class TaskExited:
    """A task's process has exited; `report` was written before.

    step: last known step of the training. is_lost: its node agent is lost, too: no restart there.
    """

    name: str
    exit_code: int
    time_s: float
    report: TaskReport | None = None
    step: int | None = None
    is_lost: bool = False


@dataclass(frozen=True)
class WaferRequested:
    """The chief asks for the wafer process of a system."""

    system: str
    run: int


@dataclass(frozen=True)
class Interrupted:
    """The launcher got SIGINT or SIGTERM; with `by_scheduler`, Slurm signalled the tasks."""

    signum: int
    time_s: float
    by_scheduler: bool = False


@dataclass(frozen=True)
class TimeLimitReached:
    """The time limit of the job has passed."""

    time_s: float


@dataclass(frozen=True)
class DeadlinePassed:
    """The time of the last `Wait` has passed."""

    time_s: float


@dataclass(frozen=True)
class ServerLost:
    """The fork server has died; `exit_code` is negative for a signal's number."""

    exit_code: int


@dataclass(frozen=True)
class Start:
    """Start a task."""

    task: StartTask


@dataclass(frozen=True)
class Send:
    """Send a signal to tasks."""

    names: tuple[str, ...]
    signum: int


@dataclass(frozen=True)
class Wait:
    """Deliver a DeadlinePassed after `seconds`; replaces an earlier deadline."""

    seconds: float


@dataclass(frozen=True)
class Restart:
    """All tasks have ended and will restart: report the cause and reset the job folder."""

    cause: TaskEnd
    number: int


@dataclass(frozen=True)
class Finish:
    """All tasks have ended, and the job with them."""


Event = TaskExited | WaferRequested | Interrupted | TimeLimitReached | DeadlinePassed | ServerLost
Instruction = Start | Send | Wait | Restart | Finish


class PhaseTransitionError(Exception):
    """Invalid phase transition, which is a bug of this module."""


class JobState:
    """Phase of a job, with its living and ended tasks."""

    def __init__(self, job: JobFile) -> None:
        self.phase = JobPhase.RUNNING
        self.ends: list[TaskEnd] = []
        self.signum: int | None = None
        self.timed_out = False
        self.server_exit_code: int | None = None
        self._job = job
        self._living: dict[str, StartTask] = {}
        self._next_wafers: dict[str, StartTask] = {}  # systems whose last wafer is alive
        self._stopped_at_s: float | None = None
        # Slurm has signalled the tasks, and may signal the launcher, too
        self._expects_echo = False
        self._restarts = 0
        self._last_failure: tuple[str, int | None] | None = None
        self._step: int | None = None
        self._has_lost_place = False  # a node can no longer start tasks
        self._lost_at: int | None = None  # the same, as reported by a task that lost a peer
        self._story: list[Event] = []

    def begin(self) -> list[Instruction]:
        """Start all planned tasks."""
        return [self._start(StartTask(t.rank, self._job.command)) for t in self._job.tasks]

    def adopt(self, task: StartTask) -> None:
        """Add a task that another launcher has started."""
        self._start(task)

    def handle(self, event: Event) -> list[Instruction]:
        """Return the instructions for an event."""
        self._story.append(event)
        match event:
            case TaskExited():
                return self._task_exited(event)
            case WaferRequested():
                return self._wafer_requested(event)
            case Interrupted():
                return self._interrupted(event)
            case TimeLimitReached():
                return self._time_limit_reached(event)
            case DeadlinePassed():
                return self._deadline_passed(event)
            case ServerLost():
                return self._server_lost(event)

    @property
    def cause(self) -> TaskEnd | None:
        """First cause of the job's failure; None if no task failed by itself.

        While a job is ending, the loss of a peer is not a failure: Slurm may signal some tasks
        first.
        """
        cause = first_cause(self.ends)
        was_signalled = self.signum is not None
        return None if was_signalled and cause is not None and cause.is_consequence else cause

    @property
    def exit_code(self) -> int:
        """Exit code of the job: that of the first cause, else that of the event that ended it."""
        if self.cause is not None:
            return self.cause.job_exit_code
        if self.server_exit_code is not None:
            return shell_code(self.server_exit_code) or 1
        if self.timed_out:
            return EXIT_TIME_LIMIT
        return 0 if self.signum is None else shell_code(-self.signum)

    @property
    def outcome(self) -> RecordState:
        """Outcome of the job for its record."""
        if self.cause is not None or self.server_exit_code is not None:
            return RecordState.FAILED
        if self.timed_out:
            return RecordState.TIMEOUT
        return RecordState.COMPLETED if self.signum is None else RecordState.CANCELLED

    def _task_exited(self, event: TaskExited) -> list[Instruction]:
        end = self._end_of(event)
        self.ends.append(end)
        if event.report is not None and event.report.step is not None:
            self._lost_at = event.report.step
        self._step = event.step
        self._has_lost_place |= event.is_lost
        if self.phase is JobPhase.STOPPING and end.role is Role.CHIEF and self._living:
            return [Send(tuple(self._living), SIGTERM)]  # it has released its peers
        next_wafer = self._next_wafers.pop(event.name, None)
        if next_wafer is not None and not end.failed and self.phase is JobPhase.RUNNING:
            return [self._start(next_wafer)]
        if not self._living:
            return self._restart() if self._may_restart() else self._finish()
        if end.failed and self.phase is JobPhase.RUNNING:
            return self._collect()
        if self.phase is JobPhase.AWAITING_LOST and not self._is_lost_peer_running():
            return self._collect()
        return []

    def _collect(self) -> list[Instruction]:
        self._go(JobPhase.COLLECTING)
        return [Wait(COLLECT_S)]

    def _is_lost_peer_running(self) -> bool:
        """True if the only failures are lost peers, and one of those still runs and may report."""
        failed = [end for end in self.ends if end.failed]
        lost = {end.report.lost for end in failed if end.is_consequence and end.report is not None}
        running = {peer_name(self._role(t), t.rank, t.wafer) for t in self._living.values()}
        return all(end.is_consequence for end in failed) and bool(lost & running)

    def _role(self, task: StartTask) -> Role:
        return self._job.tasks[task.rank].role if task.wafer is None else Role.WAFER

    def _end_of(self, event: TaskExited) -> TaskEnd:
        task = self._living.pop(event.name)
        end = TaskEnd(
            name=event.name,
            rank=task.rank,
            role=self._role(task),
            node=self._job.tasks[task.rank].node,
            exit_code=event.exit_code,
            time_s=event.time_s,
            report=event.report,
            wafer=task.wafer,
        )
        stopped_at_s = self._stopped_at_s
        # By the time of the failure: its process may be reaped after the others were signalled.
        ended_by_us = stopped_at_s is not None and end.cause_time_s >= stopped_at_s
        return replace(end, ended_by_launcher=ended_by_us)

    def _wafer_requested(self, event: WaferRequested) -> list[Instruction]:
        if self.phase is not JobPhase.RUNNING:
            return []
        wafer = StartTask(0, (), event.system, event.run)
        # of the chief's last run; only one wafer at a time has the log and the report
        if wafer.name in self._living:
            self._next_wafers[wafer.name] = wafer
            return []
        return [self._start(wafer)]

    def _interrupted(self, event: Interrupted) -> list[Instruction]:
        if self._is_repeated(event):
            return []
        # The first signal determines the exit code, also if others follow.
        self.signum = self.signum or event.signum
        is_echo = event.by_scheduler or self._expects_echo
        self._expects_echo = event.by_scheduler
        if self.phase is JobPhase.STOPPING and not is_echo:
            return self._kill()
        if self.phase in (JobPhase.RUNNING, JobPhase.COLLECTING, JobPhase.AWAITING_LOST):
            return self._stop(event.time_s, self._job.grace_s)
        return []

    def _is_repeated(self, event: Interrupted) -> bool:
        """True for a repetition of the signal that already ends the job."""
        if event.signum != self.signum or self._stopped_at_s is None:
            return False
        by_someone_else = event.by_scheduler or self._expects_echo
        return not by_someone_else and event.time_s - self._stopped_at_s < BURST_S

    def _time_limit_reached(self, event: TimeLimitReached) -> list[Instruction]:
        self.timed_out = self.signum is None
        if self.phase is not JobPhase.RUNNING:
            return []  # it is ending already; only record that it must not restart
        return self._stop(event.time_s, self._job.grace_s)

    def _deadline_passed(self, event: DeadlinePassed) -> list[Instruction]:
        if self.phase is JobPhase.COLLECTING and self._is_lost_peer_running():
            self._go(JobPhase.AWAITING_LOST)
            return [Wait(LOST_PEER_S)]
        if self.phase in (JobPhase.COLLECTING, JobPhase.AWAITING_LOST):
            return self._stop(event.time_s, FAILURE_GRACE_S)
        if self.phase is JobPhase.STOPPING:
            return self._kill()
        return []

    def _server_lost(self, event: ServerLost) -> list[Instruction]:
        if self.phase is JobPhase.ENDED:
            return []
        # Tasks die with their server, so no further exits will be reported.
        self.server_exit_code = event.exit_code
        self._living.clear()
        return self._finish()

    def _start(self, task: StartTask) -> Instruction:
        self._living[task.name] = task
        return Start(task)

    def _stop(self, now_s: float, grace_s: float) -> list[Instruction]:
        self._go(JobPhase.STOPPING)
        self._stopped_at_s = now_s
        return [Send(tuple(self._living), SIGTERM), Wait(grace_s)]

    def _kill(self) -> list[Instruction]:
        self._go(JobPhase.KILLING)
        return [Send(tuple(self._living), SIGKILL)]

    def _may_restart(self) -> bool:
        """True if a restart may overcome the failure."""
        cause = self.cause
        if cause is None or self._restarts == self._job.max_restarts:
            return False
        was_ended = self.signum is not None or self.timed_out or self._has_lost_place
        is_users_mistake = cause.job_exit_code == UsageError.exit_code
        step = self._step if self._lost_at is None else self._lost_at
        # The same cause at the same step is deterministic and would recur.
        failure, last = (summarize(cause), step), self._last_failure
        self._last_failure = failure
        return not was_ended and not is_users_mistake and failure != last

    def _restart(self) -> list[Instruction]:
        cause = self.cause
        assert cause is not None
        self._restarts += 1
        self._go(JobPhase.RUNNING)
        self.ends, self._next_wafers = [], {}
        self._stopped_at_s = self._lost_at = None
        return [Restart(cause, self._restarts), *self.begin()]

    def _finish(self) -> list[Instruction]:
        self._go(JobPhase.ENDED)
        return [Finish()]

    def _go(self, phase: JobPhase) -> None:
        if (self.phase, phase) not in TRANSITIONS:
            story = "\n".join(f"  {event}" for event in self._story)
            raise PhaseTransitionError(f"{self.phase} -> {phase} after:\n{story}")
        self.phase = phase
