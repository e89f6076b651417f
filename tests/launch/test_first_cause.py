"""First cause of a failure, from tables of exits, and messages of a job that lost its server."""

from pathlib import Path

import pytest

from csrun.context import Role, TaskReport, TaskReportKind
from csrun.launch.first_cause import (
    TaskEnd,
    describe_cause,
    describe_server_loss,
    first_cause,
    summarize,
)

LOST, ERROR, EXIT = TaskReportKind.PEER_LOST, TaskReportKind.ERROR, TaskReportKind.EXIT


def end(
    rank: int,
    exit_code: int,
    seen_s: float,
    kind: TaskReportKind | None = None,
    updated_s: float = 0.0,
    ours: bool = False,
) -> TaskEnd:
    report = TaskReport(rank, kind, "", "", exit_code, updated_s, 0) if kind else None
    return TaskEnd(f"rank-{rank}", rank, Role.TASK, "node1", exit_code, seen_s, ours, report)


TABLE = [
    ("nobody failed", [end(0, 0, 1), end(1, 0, 2)], None),
    ("one failed", [end(0, 0, 1), end(1, 3, 2)], 1),
    ("the earlier death", [end(0, 1, 5), end(1, -9, 4)], 1),
    ("the earlier word, reaped later", [end(0, 1, 5, ERROR, 4.9), end(1, 1, 6, ERROR, 4.8)], 1),
    ("a lost peer is a consequence", [end(0, 1, 1, LOST, 0.9), end(1, -9, 2)], 1),
    ("two lost peers are all there is", [end(0, 1, 3, LOST, 2), end(1, 1, 2, LOST, 1)], 1),
    ("what the launcher ended does not count", [end(0, -15, 1, ours=True), end(1, 2, 3)], 1),
    ("only what the launcher ended", [end(0, -15, 1, ours=True), end(1, 0, 2)], None),
    ("sys.exit(3)", [end(0, 1, 2, LOST, 1.9), end(1, 3, 3, EXIT, 2.5)], 1),
]  # fmt: skip


@pytest.mark.parametrize(("story", "ends", "rank"), TABLE, ids=[row[0] for row in TABLE])
def test_first_cause(story: str, ends: list[TaskEnd], rank: int | None) -> None:
    for order in (ends, ends[::-1]):
        cause = first_cause(order)
        assert (cause.rank if cause else None) == rank


def role_end(
    role: Role, rank: int, exit_code: int, seen_s: float, lost: str = "", wafer: str | None = None
) -> TaskEnd:
    message = f"lost the connection to {lost}"
    report = TaskReport(rank, LOST, message, "", exit_code, seen_s, 0, lost) if lost else None
    name = f"rank-{rank}"
    return TaskEnd(name, rank, role, "node1", exit_code, seen_s, report=report, wafer=wafer)


CHIEF = role_end(Role.CHIEF, 0, 1, 3.0, "streamer 3")
MEMORYX = role_end(Role.MEMORYX, 1, 1, 3.1, "chief")
LET_GO = role_end(Role.STREAMER, 2, 0, 1.0)
MISSED = role_end(Role.STREAMER, 3, 0, 2.0)


def test_who_ended_early_is_the_one_that_was_missed() -> None:
    """Neither the chief that lost it, nor a task that was released and ended earlier."""
    cause = first_cause([LET_GO, MISSED, CHIEF, MEMORYX])
    assert cause is not None
    assert (cause.rank, cause.job_exit_code, cause.is_consequence) == (3, 1, True)
    assert summarize(cause) == "rank 3 (streamer) on node1 ended early, exit code 0"
    assert describe_cause(cause, Path("its.log"), False).splitlines() == [
        "csrun_wse: error: rank 3 (streamer) on node1 ended early, exit code 0",
        "  rank 0 (chief) on node1: lost the connection to streamer 3",
        "log: its.log",
    ]


def test_who_was_missed_is_no_cause_beside_a_failure() -> None:
    killed = role_end(Role.MEMORYX, 1, -9, 2.5)
    cause = first_cause([MISSED, CHIEF, killed])
    assert cause is not None
    assert cause.rank == 1


def test_a_wafer_that_ended_early_is_known_by_its_system() -> None:
    chief = role_end(Role.CHIEF, 0, 1, 3.0, "wafer cs2-02")
    cause = first_cause([chief, LET_GO, role_end(Role.WAFER, 0, 0, 2.0, wafer="cs2-02")])
    assert cause is not None
    assert summarize(cause) == "wafer of cs2-02 (for rank 0 on node1) ended early, exit code 0"


@pytest.mark.parametrize(("exit_code", "job_code"), [(3, 3), (-9, 137), (-15, 143), (1, 1)])
def test_exit_code_of_the_job(exit_code: int, job_code: int) -> None:
    assert end(0, exit_code, 1).job_exit_code == job_code


def test_a_server_that_was_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    assert describe_server_loss(-9, tmp_path).splitlines() == [
        "csrun_wse: error: the fork server was killed by signal 9 (SIGKILL); the tasks of the "
        "job ended with it",
        f"logs: {tmp_path}/logs",
    ]


def test_a_server_that_failed_has_said_why(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [f"frame {number}" for number in range(40)] + ["ImportError: no numpy"]
    (tmp_path / "logs" / "forkserver.log").write_text("\n".join(lines))
    said = describe_server_loss(1, tmp_path).splitlines()
    assert "the fork server ended with exit code 1" in said[0]
    assert said[-2:] == ["  ImportError: no numpy", f"logs: {tmp_path}/logs"]
    assert len(said) == 22  # the head, the last 20 lines, the place
