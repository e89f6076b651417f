"""Node agent without its launcher: detection of the loss, and the decisions in its place.

csrun_wse appends a heartbeat to its mailbox every HEARTBEAT_S. A node agent that reads nothing new
for SILENCE_S continues without it: its tasks run to their end or to the job's time limit, the chief
gets the wafers that it requests, and when a task fails the others are ended, as csrun_wse would do.
Then the node agent exits.

`HeartbeatMonitor` and `FallbackController` are pure: events and times are inputs, instructions are
    outputs. `OrphanedNode` has the files by which node agents notify each other, and calls the
    Slurm commands that end a job without a launcher.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from signal import SIGTERM

import msgspec

from csrun.context import JobFile
from csrun.context.job import ENDED_DIR
from csrun.jobs.folder import JobFolder
from csrun.launch.life.job_state import (
    DeadlinePassed,
    Finish,
    Instruction,
    Interrupted,
    JobPhase,
    JobState,
    TaskExited,
    TimeLimitReached,
    WaferRequested,
    Wait,
)
from csrun.launch.process.protocol import StartTask
from csrun.launch.slurm import job_comment, mailbox
from csrun.launch.slurm.commands import call

EXIT_NEVER_STARTED = 1
HEARTBEAT_S = 10.0
SILENCE_S = 120.0  # a launcher that is stopped for a moment must be able to return
MOST_S = 5.0  # maximum per read: no message can arrive while the file system hangs

Happening = StartTask | TaskExited | WaferRequested


class HeartbeatMonitor:
    """Time since something new was read from csrun_wse, on this machine's monotonic clock.

    File times are not used: over NFS they come from another machine, or are stale.
    """

    def __init__(self, now_s: float) -> None:
        self._read_s = now_s
        self._silent_s = 0.0

    def note_read(self, now_s: float, *, has_news: bool) -> None:
        """Record that the mailbox was read, with or without new messages."""
        since_s = min(now_s - self._read_s, MOST_S)
        self._read_s = now_s
        self._silent_s = 0.0 if has_news else self._silent_s + since_s

    def is_lost(self, silence_s: float) -> bool:
        """True if the silence has lasted at least this long."""
        return self._silent_s >= silence_s


class FallbackController:
    """Controller of one node's tasks without csrun_wse; tasks are not restarted.

    begun_s: time of their first start, for the job's time limit.
    """

    def __init__(self, job: JobFile, begun_s: float) -> None:
        self._state = JobState(msgspec.structs.replace(job, max_restarts=0))
        self._limit_at_s = inf if job.time_limit_s is None else begun_s + job.time_limit_s
        self._deadline_s = inf
        self.has_finished = False

    @property
    def is_needed(self) -> bool:
        """False as long as a returning csrun_wse would find nothing changed."""
        return self._state.phase is not JobPhase.RUNNING

    @property
    def exit_code(self) -> int:
        """Exit code of the job as known here: that of the first cause, else of the event that ended
        it.
        """
        return self._state.exit_code

    def take_over(self, story: Iterable[Happening], now_s: float) -> list[Instruction]:
        """Return the instructions for all events since the tasks were started."""
        happened = [*story]
        done = [instruction for each in happened for instruction in self._repeat(each, happened)]
        return self._timed(done, now_s)

    def handle(self, event: TaskExited | WaferRequested, now_s: float) -> list[Instruction]:
        """Return the instructions for an event."""
        return self._timed(self._state.handle(event), now_s)

    def next_instructions(self, now_s: float, *, is_given_up: bool) -> list[Instruction]:
        """Return the instructions that are due; is_given_up: an agent left after a failure."""
        if now_s >= self._deadline_s:
            self._deadline_s = inf
            return self._timed(self._state.handle(DeadlinePassed(now_s)), now_s)
        if self._state.phase is not JobPhase.RUNNING:
            return []
        if is_given_up:
            return self._timed(self._state.handle(Interrupted(SIGTERM, now_s)), now_s)
        if now_s >= self._limit_at_s:
            return self._timed(self._state.handle(TimeLimitReached(now_s)), now_s)
        return []

    def _repeat(self, happened: Happening, story: list[Happening]) -> list[Instruction]:
        match happened:
            case StartTask():
                self._state.adopt(happened)
            case TaskExited():
                return self._state.handle(happened)
            case WaferRequested(system, run):
                if StartTask(0, (), system, run) not in story:
                    return self._state.handle(happened)
        return []

    def _timed(self, instructions: list[Instruction], now_s: float) -> list[Instruction]:
        """Store deadlines; return the other instructions for the node agent."""
        for each in instructions:
            if isinstance(each, Wait):
                self._deadline_s = now_s + each.seconds
            self.has_finished |= isinstance(each, Finish)
        return [each for each in instructions if not isinstance(each, Wait | Finish)]


class OrphanedNode:
    """Node agent's view of its launcher; is_first: the agent is on the chief's node."""

    def __init__(self, folder: JobFolder, job_id: int, *, is_first: bool) -> None:
        self._folder = folder
        self._job_id = job_id
        self._is_first = is_first
        self._heartbeat = mailbox.Heartbeat(SILENCE_S, frees_job=False)
        self._orders = mailbox.MailboxReader(
            mailbox.launcher_mailbox(folder.path), msgspec.msgpack.Decoder(mailbox.ToNodeAgents)
        )
        self._watch = HeartbeatMonitor(time.monotonic())
        self._job: JobFile | None = None
        self._begun_s = 0.0
        self._story: list[Happening] = []  # events since the tasks were started
        self._fallback: FallbackController | None = None

    def orders(self) -> list[mailbox.ToNodeAgents]:
        """Return new messages of the launcher."""
        orders = self._orders.read()
        self._watch.note_read(time.monotonic(), has_news=bool(orders))
        for order in orders:
            if isinstance(order, mailbox.Heartbeat):
                self._heartbeat = order
        return orders

    @property
    def stays(self) -> bool:
        """True if this agent stays to the end: without a launcher it ends the Slurm job."""
        return self._is_first and self._heartbeat.frees_job

    @property
    def silence_s(self) -> float:
        """Time after which the launcher and an agent each consider the other lost, in seconds."""
        return self._heartbeat.silence_s

    @property
    def is_alone(self) -> bool:
        """True if the launcher is lost, or was lost and we have started to end the job."""
        is_lost = self._watch.is_lost(self.silence_s)
        return is_lost or (self._fallback is not None and self._fallback.is_needed)

    def begin(self, job: JobFile) -> None:
        """Record the start, or restart, of the tasks."""
        if self._job is None:
            self._begun_s = time.monotonic()
        self._job = job
        self._story.clear()

    def has_started(self, task: StartTask) -> bool:
        """True if a task was started already: what a controller did is ordered again when its
        launcher returns.
        """
        return task in self._story

    def keep(self, happened: Happening) -> list[Instruction]:
        """Record an event; return the instructions for it."""
        self._story.append(happened)
        if self._fallback is None or isinstance(happened, StartTask):
            return []
        return self._fallback.handle(happened, time.monotonic())

    def next_instructions(self) -> list[Instruction]:
        """Return instructions in place of the launcher's; none while it sends messages."""
        if not self.is_alone:
            if self._fallback is not None:
                self._fallback = None
                self._report_return()
            return []
        if self._job is None:
            return []
        done, now_s = [], time.monotonic()
        if self._fallback is None:
            self._report_loss()
            self._fallback = FallbackController(self._job, self._begun_s)
            done = self._fallback.take_over(self._story, now_s)
        is_given_up = mailbox.abandoned_file(self._folder.path).exists()
        return [*done, *self._fallback.next_instructions(now_s, is_given_up=is_given_up)]

    def may_leave(self) -> bool:
        """True if nothing is left to be done without the launcher."""
        if self._job is None:
            return True
        if self._fallback is None or not self._fallback.has_finished:
            return False
        has_failed = self._fallback.exit_code != 0
        return has_failed or not self.stays or self._have_all_ended(len(self._job.tasks))

    def leave(self) -> int:
        """Notify the other agents of a failure, and end the Slurm job; return the exit code."""
        code = EXIT_NEVER_STARTED if self._fallback is None else self._fallback.exit_code
        if code != 0:
            with suppress(OSError):
                mailbox.abandoned_file(self._folder.path).touch()
        if self._heartbeat.frees_job and (code != 0 or self._is_first):
            call("scancel", str(self._job_id))
        return code

    def _have_all_ended(self, tasks: int) -> bool:
        ended = len(os.listdir(self._folder.path / ENDED_DIR))
        return ended == tasks or mailbox.abandoned_file(self._folder.path).exists()

    def _report_loss(self) -> None:
        if self._is_first:
            self._log(f"{job_comment.LOST}: no message for {self.silence_s:g} s")
            job_comment.add_note(self._job_id, job_comment.LOST)

    def _report_return(self) -> None:
        if self._is_first:
            self._log("csrun: launcher reappeared")
            job_comment.remove_note(self._job_id, job_comment.LOST)

    def _log(self, line: str) -> None:
        with suppress(OSError), self._folder.log("srun").open("a") as log:
            log.write(f"{line}\n")
