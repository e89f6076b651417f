"""Record of a job, from its submission until after its folder is deleted. Pure."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from signal import SIGINT
from typing import Any

import msgspec

from csrun.base.errors import EXIT_INTERRUPTED, CsrunError
from csrun.context.deferred_termination import describe_signal
from csrun.context.job import LeaseRecord, now
from csrun.jobs.job_labels import text as labels_text
from csrun.jobs.request import type_of
from csrun.jobs.signals import EndedBySignalError
from csrun.jobs.time_limit import format_duration, when


class RecordState(StrEnum):
    """State of a job, in Slurm's words; LOST: its launcher died without reporting."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    LOST = "LOST"


TRANSITIONS: dict[RecordState, frozenset[RecordState]] = {
    RecordState.PENDING: frozenset(
        {RecordState.RUNNING, RecordState.FAILED, RecordState.CANCELLED, RecordState.LOST}
    ),
    RecordState.RUNNING: frozenset(RecordState) - {RecordState.PENDING, RecordState.RUNNING},
}


class RecordTransitionError(Exception):
    """Invalid state transition, which is a bug."""


class Launcher(msgspec.Struct, frozen=True):
    """Process that is signalled to end a job; `start` distinguishes it from a later process of the
    same id.

    Units: start in the kernel's ticks since its boot
    """

    host: str
    pid: int
    start: int


class Outcome(msgspec.Struct, frozen=True):
    """End of a job; `cause` is one line, empty for a success."""

    state: RecordState
    exit_code: int
    cause: str = ""


def outcome_of(error: BaseException) -> Outcome:
    """Return the end of a job whose launcher was stopped by an error, whatever its tasks had
    done.
    """
    if isinstance(error, KeyboardInterrupt):
        return Outcome(RecordState.CANCELLED, EXIT_INTERRUPTED, describe_signal(SIGINT))
    if isinstance(error, EndedBySignalError):
        return Outcome(RecordState.CANCELLED, error.exit_code, str(error))
    if isinstance(error, CsrunError):
        return Outcome(RecordState.FAILED, error.exit_code, str(error))
    return Outcome(RecordState.FAILED, 1, f"{type(error).__name__}: {error}")


class JobRecord(msgspec.Struct, frozen=True):
    """One job.

    cause: reason of a failure.
    reason: what a pending job waits for; in its file, what it waited for at first.
    systems: CS systems that the job had; of a living job those in its folder.
    restarts: cause of each restart.
    command, output: as given.
    account: account that a cluster's scheduler charges.

    The end of a LOST job is the time at which the loss was noticed.
    """

    job_id: int
    name: str
    user: str
    uid: int
    command: tuple[str, ...]
    working_dir: str
    nodes: int
    tasks: int
    launcher: Launcher
    submitted: datetime
    state: RecordState = RecordState.PENDING
    reason: str = ""
    time_limit_s: int | None = None
    output: str | None = None
    node_names: tuple[str, ...] = ()
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    cause: str = ""
    logs: str | None = None
    systems: tuple[LeaseRecord, ...] = ()
    restarts: tuple[str, ...] = ()
    account: str = ""
    labels: dict[str, str] = {}

    @property
    def type(self) -> str:
        """Compile or execute; empty if the job's command is not published."""
        return type_of(self.command)

    @property
    def is_active(self) -> bool:
        """True for a pending or running job."""
        return self.state in TRANSITIONS

    @property
    def elapsed_s(self) -> float:
        """Run time of the job so far, or in total, in seconds."""
        return ((self.ended or now()) - self.started).total_seconds() if self.started else 0.0

    @property
    def system(self) -> str:
        """System, or systems, that the job has, or had last; empty if it never had any."""
        last = next((use for use in reversed(self.systems) if use.taken), None)
        if last is None:
            return ""
        return ", ".join(use.system for use in self.systems if use.requested == last.requested)

    @property
    def why(self) -> str:
        """Reason why the job is pending, or why it failed; empty otherwise."""
        return f"waits for {self.reason}" if self.reason else self.cause

    def details(self) -> Iterator[tuple[str, str]]:
        """Details of the job, by name."""
        limit = "none" if self.time_limit_s is None else format_duration(self.time_limit_s)
        said = {
            "job": str(self.job_id),
            "name": self.name,
            "type": self.type,
            "labels": labels_text(self.labels),
            "user": self.user,
            "account": self.account,
            "state": self.state,
            "why": self.why,
            "exit code": "" if self.exit_code is None else str(self.exit_code),
            "command": shlex.join(self.command),
            "folder": self.working_dir,
            "tasks": f"{self.tasks} on {self.nodes} node{'s' * (self.nodes > 1)}",
            "nodes": ", ".join(self.node_names),
            "submitted": when(self.submitted),
            "started": when(self.started),
            "ended": when(self.ended),
            "time": f"{format_duration(self.elapsed_s)}, limit {limit}",
            "output": self.output or "",
            "logs": self.logs or "",
            "launcher": f"process {self.launcher.pid} on {self.launcher.host}",
        }
        yield from ((key, value) for key, value in said.items() if value)
        for cause in self.restarts:
            yield "restarted after", cause
        for use in self.systems:
            taken = f"from {when(use.taken)} to {when(use.released) or '?'}"
            yield "system", f"{use.system} {taken if use.taken else 'never allocated'}"


def moved(record: JobRecord, state: RecordState, **changes: Any) -> JobRecord:
    """Return the record in another state.

    Raises: RecordTransitionError for a transition that the table does not have
    """
    if state not in TRANSITIONS.get(record.state, frozenset()):
        raise RecordTransitionError(f"job {record.job_id}: {record.state} -> {state}")
    return msgspec.structs.replace(record, state=state, reason="", **changes)


def ended(record: JobRecord, outcome: Outcome, systems: tuple[LeaseRecord, ...]) -> JobRecord:
    """Return the record of the job with an end."""
    return moved(
        record,
        outcome.state,
        ended=now(),
        exit_code=outcome.exit_code,
        cause=outcome.cause,
        systems=systems,
    )
