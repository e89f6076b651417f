"""State of a job: events in, instructions out."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from csrun.base.mode import GRACE_S
from csrun.context import JobFile, Role, TaskEntry, TaskReport, TaskReportKind
from csrun.launch.first_cause import summarize
from csrun.launch.life.job_state import (
    COLLECT_S,
    FAILURE_GRACE_S,
    LOST_PEER_S,
    DeadlinePassed,
    Event,
    Finish,
    Instruction,
    Interrupted,
    JobPhase,
    JobState,
    PhaseTransitionError,
    Send,
    ServerLost,
    Start,
    TaskExited,
    TimeLimitReached,
    WaferRequested,
    Wait,
)
from csrun.launch.process.protocol import StartTask

ENTRIES = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (0,)) for rank in range(2))
JOB = JobFile(1, None, ("true",), "/", "local", 1, 1, ENTRIES)
ZERO, ONE, WAFER = "rank-00000", "rank-00001", "wafer-cs2-02"
BOTH = (ZERO, ONE)
FIRST_WAFER = Start(StartTask(0, (), "cs2-02", 1))
SECOND_WAFER = Start(StartTask(0, (), "cs2-02", 2))
LOST_PEER = TaskReport(1, TaskReportKind.PEER_LOST, "lost rank 0", "", 1, 1.0, 1)

STORIES: list[tuple[str, list[tuple[Event, list[Instruction]]], int]] = [
    ("all end well", [(TaskExited(ZERO, 0, 1.0), []), (TaskExited(ONE, 0, 2.0), [Finish()])], 0),
    (
        "one fails, the other is stopped",
        [
            (TaskExited(ONE, 3, 1.0), [Wait(COLLECT_S)]),
            (DeadlinePassed(1.3), [Send((ZERO,), SIGTERM), Wait(FAILURE_GRACE_S)]),
            (TaskExited(ZERO, -15, 1.4), [Finish()]),
        ],
        3,
    ),
    (
        "the other does not want to",
        [
            (TaskExited(ONE, -9, 1.0), [Wait(COLLECT_S)]),
            (DeadlinePassed(1.3), [Send((ZERO,), SIGTERM), Wait(FAILURE_GRACE_S)]),
            (DeadlinePassed(6.3), [Send((ZERO,), SIGKILL)]),
            (DeadlinePassed(9.0), []),
            (TaskExited(ZERO, -9, 6.4), [Finish()]),
        ],
        137,
    ),
    (
        "both fail within the window",
        [(TaskExited(ONE, 4, 1.1), [Wait(COLLECT_S)]), (TaskExited(ZERO, 5, 1.0), [Finish()])],
        5,
    ),
    (
        "a peer is lost before we hear that the job was told to end",
        [
            (TaskExited(ONE, 1, 1.1, LOST_PEER), [Wait(COLLECT_S)]),
            (Interrupted(SIGTERM, 1.2), [Send((ZERO,), SIGTERM), Wait(GRACE_S)]),
            (TaskExited(ZERO, 143, 1.3), [Finish()]),
        ],
        143,
    ),
    (
        "a peer is lost, and nobody knows why",
        [
            (TaskExited(ONE, 1, 1.1, LOST_PEER), [Wait(COLLECT_S)]),
            (TaskExited(ZERO, 0, 1.3), [Finish()]),
        ],
        1,
    ),
    (
        "Ctrl-C",
        [
            (Interrupted(SIGINT, 1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (TaskExited(ZERO, 143, 1.1), []),
            (TaskExited(ONE, 0, 1.2), [Finish()]),
        ],
        130,
    ),
    (
        "Ctrl-C by `timeout`, which signals the launcher and its group",
        [
            (Interrupted(SIGINT, 1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (Interrupted(SIGINT, 1.1), []),
            (Interrupted(SIGINT, 1.3), [Send(BOTH, SIGKILL)]),
            (TaskExited(ZERO, -9, 1.7), []),
            (TaskExited(ONE, -9, 1.7), [Finish()]),
        ],
        130,
    ),
    (
        "Ctrl-C twice",
        [
            (Interrupted(SIGINT, 1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (Interrupted(SIGINT, 1.5), [Send(BOTH, SIGKILL)]),
            (Interrupted(SIGINT, 1.6), []),
            (TaskExited(ZERO, -9, 1.7), []),
            (TaskExited(ONE, -9, 1.7), [Finish()]),
        ],
        130,
    ),
    (
        "SIGTERM after a failure: the failure is the cause",
        [
            (TaskExited(ONE, 7, 1.0), [Wait(COLLECT_S)]),
            (Interrupted(SIGTERM, 1.1), [Send((ZERO,), SIGTERM), Wait(GRACE_S)]),
            (TaskExited(ZERO, -15, 1.2), [Finish()]),
        ],
        7,
    ),
    (
        "the time limit",
        [
            (TimeLimitReached(1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (TaskExited(ZERO, 0, 1.1), []),
            (DeadlinePassed(6.0), [Send((ONE,), SIGKILL)]),
            (TaskExited(ONE, -9, 6.1), [Finish()]),
        ],
        143,
    ),
    (
        "the time limit after a failure: the failure is the cause",
        [
            (TaskExited(ONE, 7, 1.0), [Wait(COLLECT_S)]),
            (TimeLimitReached(1.1), []),
            (DeadlinePassed(1.3), [Send((ZERO,), SIGTERM), Wait(FAILURE_GRACE_S)]),
            (TaskExited(ZERO, -15, 1.4), [Finish()]),
        ],
        7,
    ),
    (
        "Slurm has told the tasks, and tells the launcher of a batch job, too",
        [
            (Interrupted(SIGTERM, 1.0, by_scheduler=True), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (Interrupted(SIGTERM, 1.1), []),
            (Interrupted(SIGTERM, 1.2, by_scheduler=True), []),
            (TaskExited(ZERO, 143, 1.3), []),
            (TaskExited(ONE, 143, 1.4), [Finish()]),
        ],
        143,
    ),
    (
        "the same, the launcher first, and then a user who does not wait",
        [
            (Interrupted(SIGTERM, 1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (Interrupted(SIGTERM, 1.1, by_scheduler=True), []),
            (Interrupted(SIGINT, 1.2), []),
            (Interrupted(SIGINT, 1.3), [Send(BOTH, SIGKILL)]),
            (TaskExited(ZERO, -9, 1.4), []),
            (TaskExited(ONE, -9, 1.4), [Finish()]),
        ],
        143,
    ),
    ("the server is killed", [(ServerLost(-9), [Finish()]), (ServerLost(-9), [])], 137),
    (
        "a wafer is a task",
        [
            (WaferRequested("cs2-02", 0), [Start(StartTask(0, (), "cs2-02", 0))]),
            (TaskExited(ZERO, 0, 1.0), []),
            (TaskExited(ONE, 0, 1.0), []),
            (TaskExited(WAFER, -9, 1.0), [Finish()]),
        ],
        137,
    ),
    (
        "the next run's wafer waits for the end of the last one's",
        [
            (WaferRequested("cs2-02", 1), [FIRST_WAFER]),
            (WaferRequested("cs2-02", 2), []),
            (WaferRequested("cs2-01", 0), [Start(StartTask(0, (), "cs2-01", 0))]),
            (TaskExited("wafer-cs2-01", 0, 1.0), []),
            (TaskExited(WAFER, 0, 1.1), [SECOND_WAFER]),
            (TaskExited(ZERO, 0, 1.2), []),
            (TaskExited(ONE, 0, 1.2), []),
            (Interrupted(SIGTERM, 1.3), [Send((WAFER,), SIGTERM), Wait(GRACE_S)]),
            (TaskExited(WAFER, -15, 1.4), [Finish()]),
        ],
        143,
    ),
    (
        "no next wafer after a failed one",
        [
            (WaferRequested("cs2-02", 1), [FIRST_WAFER]),
            (WaferRequested("cs2-02", 2), []),
            (TaskExited(WAFER, -9, 1.0), [Wait(COLLECT_S)]),
            (DeadlinePassed(1.3), [Send(BOTH, SIGTERM), Wait(FAILURE_GRACE_S)]),
            (TaskExited(ZERO, -15, 1.4), []),
            (TaskExited(ONE, -15, 1.4), [Finish()]),
        ],
        137,
    ),
    (
        "no next wafer for a job that ends",
        [
            (WaferRequested("cs2-02", 1), [FIRST_WAFER]),
            (WaferRequested("cs2-02", 2), []),
            (Interrupted(SIGTERM, 1.0), [Send((*BOTH, WAFER), SIGTERM), Wait(GRACE_S)]),
            (TaskExited(WAFER, 0, 1.1), []),
            (TaskExited(ZERO, 0, 1.2), []),
            (TaskExited(ONE, 0, 1.2), [Finish()]),
        ],
        143,
    ),
    (
        "no wafer for a job that ends",
        [
            (Interrupted(SIGTERM, 1.0), [Send(BOTH, SIGTERM), Wait(GRACE_S)]),
            (WaferRequested("cs2-02", 0), []),
        ],
        143,
    ),
]


@pytest.mark.parametrize(("story", "steps", "code"), STORIES, ids=[row[0] for row in STORIES])
def test_story(story: str, steps: list[tuple[Event, list[Instruction]]], code: int) -> None:
    state = JobState(JOB)
    assert state.begin() == [Start(StartTask(0, ("true",))), Start(StartTask(1, ("true",)))]
    for event, expected in steps:
        assert state.handle(event) == expected, event
    assert state.exit_code == code


def test_a_chief_that_is_gone_has_let_go_of_its_peers() -> None:
    """The chief held their signal until then; the grace period continues."""
    roles = (Role.CHIEF, Role.STREAMER)
    tasks = tuple(TaskEntry(rank, role, "node1", 0, rank, (0,)) for rank, role in enumerate(roles))
    state = JobState(JobFile(1, None, ("true",), "/", "local", 1, 1, tasks, grace_s=7.0))
    state.begin()
    assert state.handle(Interrupted(SIGTERM, 1.0)) == [Send(BOTH, SIGTERM), Wait(7.0)]
    assert state.handle(TaskExited(ZERO, 143, 5.0)) == [Send((ONE,), SIGTERM)]
    assert state.handle(DeadlinePassed(8.0)) == [Send((ONE,), SIGKILL)]
    assert state.handle(TaskExited(ONE, -9, 8.1)) == [Finish()]
    assert state.exit_code == 143


STREAMER = TaskExited(
    ONE, 1, 1.0, TaskReport(1, TaskReportKind.PEER_LOST, "", "", 1, 1.0, 1, "chief")
)
REPORT = TaskReport(0, TaskReportKind.ERROR, "ValueError: odd", "", 1, 5.0, 1)


def lost_chief() -> JobState:
    """Job whose streamer has lost a chief that still runs."""
    roles = (Role.CHIEF, Role.STREAMER)
    tasks = tuple(TaskEntry(rank, role, "node1", 0, rank, (0,)) for rank, role in enumerate(roles))
    state = JobState(JobFile(1, None, ("true",), "/", "local", 1, 1, tasks))
    state.begin()
    assert state.handle(STREAMER) == [Wait(COLLECT_S)]
    assert state.handle(DeadlinePassed(1.3)) == [Wait(LOST_PEER_S)]
    return state


def test_a_lost_peer_that_still_runs_has_time_to_report() -> None:
    state = lost_chief()
    assert state.handle(TaskExited(ZERO, 1, 5.1, REPORT)) == [Finish()]
    assert state.cause is not None
    assert (state.cause.rank, state.cause.report) == (0, REPORT)


def test_a_lost_peer_that_never_reports_is_named() -> None:
    state = lost_chief()
    assert state.handle(DeadlinePassed(11.3)) == [Send((ZERO,), SIGTERM), Wait(FAILURE_GRACE_S)]
    assert state.handle(TaskExited(ZERO, -15, 11.4)) == [Finish()]
    assert state.cause is not None
    assert summarize(state.cause) == (
        "rank 0 (chief) on node1 dropped its connections and reported no cause"
    )
    assert state.exit_code == 1


def test_a_task_that_is_killed_after_its_report_has_failed_by_itself() -> None:
    state = lost_chief()
    state.handle(DeadlinePassed(11.3))
    state.handle(TaskExited(ZERO, -9, 13.4, REPORT))
    assert state.cause is not None
    assert (state.cause.report, state.exit_code) == (REPORT, 1)


def test_the_job_ends_soon_after_the_lost_peer_has() -> None:
    roles = (Role.CHIEF, Role.MEMORYX, Role.STREAMER)
    tasks = tuple(TaskEntry(rank, role, "node1", 0, rank, (0,)) for rank, role in enumerate(roles))
    state = JobState(JobFile(1, None, ("true",), "/", "local", 1, 1, tasks))
    state.begin()
    state.handle(STREAMER)
    state.handle(DeadlinePassed(1.3))
    assert state.handle(TaskExited(ZERO, 1, 5.1, REPORT)) == [Wait(COLLECT_S)]
    assert state.handle(DeadlinePassed(5.4)) == [
        Send(("rank-00002",), SIGTERM),
        Wait(FAILURE_GRACE_S),
    ]


def test_a_wafers_end_names_its_system() -> None:
    state = JobState(JOB)
    state.begin()
    state.handle(WaferRequested("cs2-02", 0))
    state.handle(TaskExited(WAFER, -9, 1.0))
    assert state.cause is not None
    assert (state.cause.wafer, state.cause.role) == ("cs2-02", Role.WAFER)


def test_an_unlisted_change_of_phase_tells_the_story() -> None:
    state = JobState(JOB)
    state.begin()
    state.phase = JobPhase.ENDED
    with pytest.raises(PhaseTransitionError, match="TaskExited"):
        state.handle(TaskExited(ZERO, 0, 1.0))
        state.handle(TaskExited(ONE, 0, 1.0))


OUTCOMES = {
    "all end well": "COMPLETED",
    "one fails, the other is stopped": "FAILED",
    "the server is killed": "FAILED",
    "Ctrl-C": "CANCELLED",
    "the time limit": "TIMEOUT",
    "the time limit after a failure: the failure is the cause": "FAILED",
    "SIGTERM after a failure: the failure is the cause": "FAILED",
}


@pytest.mark.parametrize(("story", "outcome"), list(OUTCOMES.items()))
def test_what_a_record_calls_it(story: str, outcome: str) -> None:
    state = JobState(JOB)
    state.begin()
    for event, _ in next(steps for name, steps, _ in STORIES if name == story):
        state.handle(event)
    assert state.outcome == outcome
