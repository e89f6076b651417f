"""The first cause, from tables of ends."""

import pytest

from csrun.context import Role, TaskReport, TaskReportKind
from csrun.launch.life.first_cause import TaskEnd, first_cause

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


@pytest.mark.parametrize(("exit_code", "job_code"), [(3, 3), (-9, 137), (-15, 143), (1, 1)])
def test_exit_code_of_the_job(exit_code: int, job_code: int) -> None:
    assert end(0, exit_code, 1).job_exit_code == job_code
