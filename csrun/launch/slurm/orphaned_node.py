"""Node agent whose launcher is silent.

The fallback controller decides what to do; this module has the files by which node agents know of
each other, and the commands of Slurm's that free a job without a launcher.
"""

import os
import time
from contextlib import suppress

import msgspec

from csrun.context import JobFile
from csrun.context.job import ENDED_DIR
from csrun.jobs.folder import JobFolder
from csrun.launch.life.job_state import Instruction
from csrun.launch.process.protocol import StartTask
from csrun.launch.slurm import job_comment, mailbox
from csrun.launch.slurm.commands import call
from csrun.launch.slurm.fallback_controller import (
    SILENCE_S,
    FallbackController,
    Happening,
    SilenceWatch,
)

EXIT_NEVER_STARTED = 1


class OrphanedNode:
    """A node agent's view of its launcher. `is_first`: the agent is the chief's."""

    def __init__(self, folder: JobFolder, job_id: int, *, is_first: bool) -> None:
        self._folder = folder
        self._job_id = job_id
        self._is_first = is_first
        self._heartbeat = mailbox.Heartbeat(SILENCE_S, frees_job=False)
        self._orders = mailbox.MailboxReader(
            mailbox.launcher_box(folder.path), msgspec.msgpack.Decoder(mailbox.ToNodeAgents)
        )
        self._watch = SilenceWatch(time.monotonic())
        self._job: JobFile | None = None
        self._begun_s = 0.0
        self._story: list[Happening] = []  # since the tasks were started
        self._fallback: FallbackController | None = None

    def orders(self) -> list[mailbox.ToNodeAgents]:
        """New messages of the launcher."""
        orders = self._orders.read()
        self._watch.look(time.monotonic(), has_news=bool(orders))
        for order in orders:
            if isinstance(order, mailbox.Heartbeat):
                self._heartbeat = order
        return orders

    @property
    def stays(self) -> bool:
        """True if we are needed to the end of all: without a launcher we free the job."""
        return self._is_first and self._heartbeat.frees_job

    @property
    def silence_s(self) -> float:
        """For how long one waits for the other."""
        return self._heartbeat.silence_s

    @property
    def is_alone(self) -> bool:
        """True if the launcher is lost, or was, and we have begun to end what it had begun."""
        is_lost = self._watch.is_lost(self.silence_s)
        return is_lost or (self._fallback is not None and self._fallback.is_needed)

    def begin(self, job: JobFile) -> None:
        """The tasks start, or start again."""
        if self._job is None:
            self._begun_s = time.monotonic()
        self._job = job
        self._story.clear()

    def has_started(self, task: StartTask) -> bool:
        """True if a task was started already: what a controller has done is ordered once more when
        its launcher comes back.
        """
        return task in self._story

    def keep(self, happened: Happening) -> list[Instruction]:
        """Take note of what has happened; what there is to do about it."""
        self._story.append(happened)
        if self._fallback is None or isinstance(happened, StartTask):
            return []
        return self._fallback.handle(happened, time.monotonic())

    def turn(self) -> list[Instruction]:
        """Instructions in place of the launcher's; none while it sends messages."""
        if not self.is_alone:
            if self._fallback is not None:
                self._fallback = None
                self._tell_return()
            return []
        if self._job is None:
            return []
        done, now_s = [], time.monotonic()
        if self._fallback is None:
            self._tell_loss()
            self._fallback = FallbackController(self._job, self._begun_s)
            done = self._fallback.take_over(self._story, now_s)
        is_given_up = mailbox.give_up_file(self._folder.path).exists()
        return [*done, *self._fallback.turn(now_s, is_given_up=is_given_up)]

    def may_leave(self) -> bool:
        """True if nothing is left to be done without the launcher."""
        if self._job is None:
            return True
        if self._fallback is None or not self._fallback.has_finished:
            return False
        has_failed = self._fallback.exit_code != 0
        return has_failed or not self.stays or self._have_all_ended(len(self._job.tasks))

    def leave(self) -> int:
        """Let the others know of a failure, and free the job; the exit code."""
        code = EXIT_NEVER_STARTED if self._fallback is None else self._fallback.exit_code
        if code != 0:
            with suppress(OSError):
                mailbox.give_up_file(self._folder.path).touch()
        if self._heartbeat.frees_job and (code != 0 or self._is_first):
            call("scancel", str(self._job_id))
        return code

    def _have_all_ended(self, tasks: int) -> bool:
        ended = len(os.listdir(self._folder.path / ENDED_DIR))
        return ended == tasks or mailbox.give_up_file(self._folder.path).exists()

    def _tell_loss(self) -> None:
        if self._is_first:
            self._log(f"{job_comment.LOST}: no message for {self.silence_s:g} s")
            job_comment.note(self._job_id, job_comment.LOST)

    def _tell_return(self) -> None:
        if self._is_first:
            self._log("csrun: launcher is back")
            job_comment.take_back(self._job_id, job_comment.LOST)

    def _log(self, line: str) -> None:
        with suppress(OSError), self._folder.log("srun").open("a") as log:
            log.write(f"{line}\n")
