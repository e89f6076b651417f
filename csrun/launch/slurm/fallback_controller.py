"""Node agent without its launcher: after how long it is lost, and what replaces its orders.

csrun_wse adds a heartbeat to its mail every HEARTBEAT_S, whatever else it waits for. A node agent
that reads nothing new for SILENCE_S goes on without it: its tasks work on to their end or to the
job's time limit, the chief has the wafers that it asks for, and when one of them has failed the
others are ended, as csrun_wse would have done. Then the node agent leaves. Pure: what is read and
when comes in, what is to be done goes out.
"""

from collections.abc import Iterable
from math import inf
from signal import SIGTERM

import msgspec

from csrun.context import JobFile
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

HEARTBEAT_S = 10.0
SILENCE_S = 120.0  # what is away for a moment, a launcher that is stopped, comes back
MOST_S = 5.0  # cap of one look: no message can arrive while the file system hangs

Happening = StartTask | TaskExited | WaferRequested


class SilenceWatch:
    """The time for which nothing new was read of csrun_wse, on this machine's monotonic clock.

    The times of the file are not asked: over NFS they are another machine's, or old.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._silent_s = 0.0

    def look(self, now_s: float, *, has_news: bool) -> None:
        """The mail was read, and had something new or not."""
        since_s = min(now_s - self._looked_s, MOST_S)
        self._looked_s = now_s
        self._silent_s = 0.0 if has_news else self._silent_s + since_s

    def is_lost(self, silence_s: float) -> bool:
        """True if the silence has lasted as long as this."""
        return self._silent_s >= silence_s


class FallbackController:
    """The life of the tasks of one node without csrun_wse; none of them starts again.

    `begun_s`: when they were started first, for the job's time limit.
    """

    def __init__(self, job: JobFile, begun_s: float) -> None:
        self._state = JobState(msgspec.structs.replace(job, max_restarts=0))
        self._limit_at_s = inf if job.time_limit_s is None else begun_s + job.time_limit_s
        self._deadline_s = inf
        self.has_finished = False

    @property
    def is_needed(self) -> bool:
        """False as long as csrun_wse, if it comes back, finds all as it was."""
        return self._state.phase is not JobPhase.RUNNING

    @property
    def exit_code(self) -> int:
        """The job's, as far as it is known here: the first cause's, else that of what ended it."""
        return self._state.exit_code

    def take_over(self, story: Iterable[Happening], now_s: float) -> list[Instruction]:
        """Instructions for all events since the tasks were started."""
        happened = [*story]
        done = [instruction for each in happened for instruction in self._repeat(each, happened)]
        return self._timed(done, now_s)

    def handle(self, event: TaskExited | WaferRequested, now_s: float) -> list[Instruction]:
        """Instructions for an event."""
        return self._timed(self._state.handle(event), now_s)

    def turn(self, now_s: float, *, is_given_up: bool) -> list[Instruction]:
        """Instructions that are due; `is_given_up`: an agent left after a failure."""
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
        """Keep the deadlines; the rest is for the node agent to do."""
        for each in instructions:
            if isinstance(each, Wait):
                self._deadline_s = now_s + each.seconds
            self.has_finished |= isinstance(each, Finish)
        return [each for each in instructions if not isinstance(each, Wait | Finish)]
