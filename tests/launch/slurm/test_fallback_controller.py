"""What an attendant does without its launcher: times and events in, instructions out."""

from signal import SIGKILL, SIGTERM

import msgspec

from csrun.context import JobFile, Role, TaskEntry
from csrun.launch.life.job_state import (
    COLLECT_S,
    FAILURE_GRACE_S,
    Send,
    Start,
    TaskExited,
    WaferRequested,
)
from csrun.launch.process.protocol import StartTask
from csrun.launch.slurm.fallback_controller import MOST_S, SILENCE_S, Deputy, Watch

ENTRIES = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (0,)) for rank in range(2))
JOB = JobFile(1, None, ("true",), "/", "local", 1, 1, ENTRIES, grace_s=7.0, time_limit_s=100)
TASK = StartTask(0, ("true",))
WAFER = StartTask(0, (), "cs2-02", 1)
ASKED = WaferRequested("cs2-02", 1)
ENDED, FAILED = TaskExited(TASK.name, 0, 1.0), TaskExited(TASK.name, 3, 1.0)
SOON = 20.0


def after(*story: StartTask | TaskExited | WaferRequested) -> tuple[Deputy, list[object]]:
    deputy = Deputy(JOB, 0.0)
    return deputy, [*deputy.take_over(story, SOON)]


def test_silence_is_what_was_looked_for_and_not_found() -> None:
    watch = Watch(0.0)
    looks = [2.0 * look for look in range(1, 61)]
    for now_s in looks:
        assert not watch.is_lost(SILENCE_S)
        watch.look(now_s, has_news=False)
    assert watch.is_lost(SILENCE_S)
    watch.look(122.0, has_news=True)
    assert not watch.is_lost(MOST_S)


def test_time_in_which_nobody_could_look_is_no_silence() -> None:
    """As when the file system does not answer for ten minutes, on either side."""
    watch = Watch(0.0)
    watch.look(600.0, has_news=False)
    assert not watch.is_lost(SILENCE_S)
    assert watch.is_lost(MOST_S)


def test_a_task_that_lives_goes_on() -> None:
    deputy, done = after(TASK)
    assert done == []
    assert deputy.turn(50.0, is_given_up=False) == []
    assert not deputy.is_needed
    assert deputy.handle(ENDED, 60.0) == []
    assert deputy.has_finished


def test_what_has_ended_before_is_known() -> None:
    deputy, done = after(TASK, ENDED)
    assert (done, deputy.has_finished) == ([], True)
    deputy, done = after(TASK, FAILED)
    assert (done, deputy.has_finished) == ([], True)


def test_a_failure_ends_what_else_lives_there() -> None:
    deputy, _ = after(TASK, WAFER)
    assert deputy.handle(FAILED, 50.0) == []
    assert deputy.is_needed
    late = 50.0 + COLLECT_S
    assert deputy.turn(late, is_given_up=False) == [Send((WAFER.name,), SIGTERM)]
    assert deputy.turn(late + 1.0, is_given_up=False) == []
    assert deputy.turn(late + FAILURE_GRACE_S, is_given_up=False) == [Send((WAFER.name,), SIGKILL)]
    assert not deputy.has_finished
    deputy.handle(TaskExited(WAFER.name, -9, 60.0), 60.0)
    assert deputy.has_finished


def test_the_limit_of_the_job_is_kept_with_its_grace() -> None:
    deputy, _ = after(TASK)
    assert deputy.turn(99.0, is_given_up=False) == []
    assert deputy.turn(101.0, is_given_up=False) == [Send((TASK.name,), SIGTERM)]
    assert deputy.turn(107.0, is_given_up=False) == []
    assert deputy.turn(108.0, is_given_up=False) == [Send((TASK.name,), SIGKILL)]
    endless = Deputy(msgspec.structs.replace(JOB, time_limit_s=None), 0.0)
    endless.take_over([TASK], SOON)
    assert endless.turn(1e9, is_given_up=False) == []


def test_a_job_that_others_have_left_is_ended() -> None:
    deputy, _ = after(TASK)
    assert deputy.turn(50.0, is_given_up=True) == [Send((TASK.name,), SIGTERM)]
    assert deputy.turn(51.0, is_given_up=True) == []


def test_a_wafer_that_nobody_has_started_is_started_once() -> None:
    assert after(TASK, ASKED)[1] == [Start(WAFER)]
    assert after(TASK, ASKED, WAFER)[1] == []
    deputy, _ = after(TASK)
    assert deputy.handle(ASKED, 50.0) == [Start(WAFER)]


def test_a_job_that_may_restart_does_not_without_its_launcher() -> None:
    deputy = Deputy(msgspec.structs.replace(JOB, max_restarts=3), 0.0)
    assert deputy.take_over([TASK, FAILED], SOON) == []
    assert deputy.has_finished
