"""Restarts of a failed job, and the events that prevent them."""

from signal import SIGTERM

import pytest

from csrun.context import JobFile, Role, TaskEntry
from csrun.launch.life.job_state import (
    DeadlinePassed,
    Event,
    Finish,
    Instruction,
    Interrupted,
    JobState,
    Restart,
    Start,
    TaskExited,
    TimeLimitReached,
)
from csrun.launch.process.protocol import StartTask

ENTRIES = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (0,)) for rank in range(2))
ZERO, ONE = "rank-00000", "rank-00001"


def restarting(times: int) -> JobState:
    state = JobState(JobFile(1, None, ("true",), "/", "local", 1, 1, ENTRIES, max_restarts=times))
    state.begin()
    return state


def fail(state: JobState, exit_code: int = -9, step: int | None = None) -> list[Instruction]:
    """Task 1 fails, and task 0 is stopped; return the instructions that follow."""
    state.handle(TaskExited(ONE, exit_code, 1.0, step=step))
    state.handle(DeadlinePassed(1.3))
    return state.handle(TaskExited(ZERO, -15, 1.4, step=step))


def test_tasks_restart_after_a_failure_up_to_the_limit() -> None:
    state = restarting(2)
    for number in (1, 2):
        restart, *starts = fail(state, step=number)
        assert isinstance(restart, Restart)
        assert (restart.number, restart.cause.rank) == (number, 1)
        assert starts == [Start(StartTask(0, ("true",))), Start(StartTask(1, ("true",)))]
    assert fail(state, step=3) == [Finish()]
    assert (state.exit_code, state.outcome) == (137, "FAILED")


def test_a_restarted_job_may_complete() -> None:
    state = restarting(1)
    fail(state)
    assert state.handle(TaskExited(ZERO, 0, 3.0)) == []
    assert state.handle(TaskExited(ONE, 0, 3.0)) == [Finish()]
    assert (state.exit_code, state.outcome) == (0, "COMPLETED")


def test_the_same_cause_at_the_same_step_ends_the_job() -> None:
    state = restarting(9)
    assert isinstance(fail(state, step=7)[0], Restart)
    assert isinstance(fail(state, step=8)[0], Restart)
    assert fail(state, step=8) == [Finish()]


def test_a_usage_error_is_not_retried() -> None:
    assert fail(restarting(9), exit_code=2) == [Finish()]


def test_a_job_that_lost_a_node_does_not_restart() -> None:
    state = restarting(9)
    state.handle(TaskExited(ONE, 1, 0.0, is_lost=True))
    assert state.handle(TaskExited(ZERO, 1, 0.0, is_lost=True)) == [Finish()]


@pytest.mark.parametrize("event", [Interrupted(SIGTERM, 0.5), TimeLimitReached(0.5)])
def test_a_job_that_is_signalled_to_end_does_not_restart(event: Event) -> None:
    state = restarting(9)
    state.handle(event)
    state.handle(TaskExited(ONE, 3, 0.4))
    assert state.handle(TaskExited(ZERO, 143, 0.7)) == [Finish()]


@pytest.mark.parametrize("ends", ["collecting", "stopping"])
def test_a_time_limit_during_the_end_of_a_failed_job_prevents_a_restart(ends: str) -> None:
    state = restarting(9)
    state.handle(TaskExited(ONE, -9, 1.0, step=7))
    if ends == "stopping":
        state.handle(DeadlinePassed(1.3))
    assert state.handle(TimeLimitReached(1.35)) == []
    assert state.handle(TaskExited(ZERO, -15, 1.4, step=7)) == [Finish()]
    assert (state.exit_code, state.outcome) == (137, "FAILED")


def test_a_cancelled_job_ignores_its_time_limit() -> None:
    state = restarting(0)
    state.handle(Interrupted(SIGTERM, 1.0))
    assert state.handle(TimeLimitReached(1.1)) == []
    state.handle(TaskExited(ONE, 143, 1.2))
    assert state.handle(TaskExited(ZERO, 143, 1.2)) == [Finish()]
    assert state.outcome == "CANCELLED"
