"""Controller of a node agent that has lost its launcher: times and events in, instructions out."""

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
from csrun.launch.slurm.orphaned_node import (
    MOST_S,
    SILENCE_S,
    FallbackController,
    HeartbeatMonitor,
)

ENTRIES = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (0,)) for rank in range(2))
JOB = JobFile(1, None, ("true",), "/", "local", 1, 1, ENTRIES, grace_s=7.0, time_limit_s=100)
TASK = StartTask(0, ("true",))
WAFER = StartTask(0, (), "cs2-02", 1)
ASKED = WaferRequested("cs2-02", 1)
ENDED, FAILED = TaskExited(TASK.name, 0, 1.0), TaskExited(TASK.name, 3, 1.0)
SOON = 20.0


def after(
    *story: StartTask | TaskExited | WaferRequested,
) -> tuple[FallbackController, list[object]]:
    controller = FallbackController(JOB, 0.0)
    return controller, [*controller.take_over(story, SOON)]


def test_silence_is_what_was_looked_for_and_not_found() -> None:
    watch = HeartbeatMonitor(0.0)
    looks = [2.0 * look for look in range(1, 61)]
    for now_s in looks:
        assert not watch.is_lost(SILENCE_S)
        watch.note_read(now_s, has_news=False)
    assert watch.is_lost(SILENCE_S)
    watch.note_read(122.0, has_news=True)
    assert not watch.is_lost(MOST_S)


def test_time_in_which_nobody_could_look_is_no_silence() -> None:
    """As when the file system hangs for ten minutes, on either side."""
    watch = HeartbeatMonitor(0.0)
    watch.note_read(600.0, has_news=False)
    assert not watch.is_lost(SILENCE_S)
    assert watch.is_lost(MOST_S)


def test_a_task_that_lives_goes_on() -> None:
    controller, done = after(TASK)
    assert done == []
    assert controller.next_instructions(50.0, is_given_up=False) == []
    assert not controller.is_needed
    assert controller.handle(ENDED, 60.0) == []
    assert controller.has_finished


def test_what_has_ended_before_is_known() -> None:
    controller, done = after(TASK, ENDED)
    assert (done, controller.has_finished) == ([], True)
    controller, done = after(TASK, FAILED)
    assert (done, controller.has_finished) == ([], True)


def test_a_failure_ends_what_else_lives_there() -> None:
    controller, _ = after(TASK, WAFER)
    assert controller.handle(FAILED, 50.0) == []
    assert controller.is_needed
    late = 50.0 + COLLECT_S
    assert controller.next_instructions(late, is_given_up=False) == [Send((WAFER.name,), SIGTERM)]
    assert controller.next_instructions(late + 1.0, is_given_up=False) == []
    assert controller.next_instructions(late + FAILURE_GRACE_S, is_given_up=False) == [
        Send((WAFER.name,), SIGKILL)
    ]
    assert not controller.has_finished
    controller.handle(TaskExited(WAFER.name, -9, 60.0), 60.0)
    assert controller.has_finished


def test_the_limit_of_the_job_is_kept_with_its_grace() -> None:
    controller, _ = after(TASK)
    assert controller.next_instructions(99.0, is_given_up=False) == []
    assert controller.next_instructions(101.0, is_given_up=False) == [Send((TASK.name,), SIGTERM)]
    assert controller.next_instructions(107.0, is_given_up=False) == []
    assert controller.next_instructions(108.0, is_given_up=False) == [Send((TASK.name,), SIGKILL)]
    endless = FallbackController(msgspec.structs.replace(JOB, time_limit_s=None), 0.0)
    endless.take_over([TASK], SOON)
    assert endless.next_instructions(1e9, is_given_up=False) == []


def test_a_job_that_others_have_left_is_ended() -> None:
    controller, _ = after(TASK)
    assert controller.next_instructions(50.0, is_given_up=True) == [Send((TASK.name,), SIGTERM)]
    assert controller.next_instructions(51.0, is_given_up=True) == []


def test_a_wafer_that_nobody_has_started_is_started_once() -> None:
    assert after(TASK, ASKED)[1] == [Start(WAFER)]
    assert after(TASK, ASKED, WAFER)[1] == []
    controller, _ = after(TASK)
    assert controller.handle(ASKED, 50.0) == [Start(WAFER)]


def test_a_job_that_may_restart_does_not_without_its_launcher() -> None:
    controller = FallbackController(msgspec.structs.replace(JOB, max_restarts=3), 0.0)
    assert controller.take_over([TASK, FAILED], SOON) == []
    assert controller.has_finished
