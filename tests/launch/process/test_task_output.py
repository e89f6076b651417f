"""Lines of a task's log that are printed on the console, and the output of a failure."""

from pathlib import Path
from typing import IO, Any

import pytest

from csrun.context import Role, TaskReport, TaskReportKind
from csrun.launch.first_cause import TAIL_LINES, TaskEnd, describe_cause, describe_exit
from csrun.launch.process.task_output import LogTail


def report(log_bytes: int, kind: TaskReportKind = TaskReportKind.ERROR) -> TaskReport:
    return TaskReport(2, kind, "params.yaml: wrong", "Traceback: boom\n", 1, 0.0, log_bytes)


def test_whole_lines_as_they_come(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log, lambda: None)
    assert tail.read() == b""
    log.write_bytes(b"one\ntw")
    assert tail.read() == b"one\n"
    log.write_bytes(b"one\ntwo\nthr")
    assert tail.read() == b"two\n"
    assert tail.read(is_last=True) == b"thr"
    assert tail.read(is_last=True) == b""


def test_nothing_beyond_a_report(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"step 1\nste")
    reports = [None, report(len(b"step 1\nstep 2\n"))]
    tail = LogTail(log, lambda: reports[-1] if len(reports) == 1 else reports.pop(0))
    assert tail.read() == b"step 1\n"
    log.write_bytes(b"step 1\nstep 2\nTraceback: boom\n")
    assert tail.read() == b"step 2\n"
    log.write_bytes(b"step 1\nstep 2\nTraceback: boom\nmore\n")
    assert tail.read(is_last=True) == b""


def test_a_log_that_does_not_grow_is_neither_opened_nor_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    opened: list[str] = []
    reports: list[TaskReport] = []

    def look() -> TaskReport | None:
        opened.append("report")
        return reports[0] if reports else None

    def write(data: bytes) -> None:
        with open(log, "wb") as file:
            file.write(data)

    open_path = Path.open

    def counted(path: Path, mode: str) -> IO[Any]:
        opened.append("log")
        return open_path(path, mode)

    monkeypatch.setattr(Path, "open", counted)
    tail = LogTail(log, look)
    assert (tail.read(), opened) == (b"", [])
    write(b"step 1\nste")
    assert (tail.read(), opened) == (b"step 1\n", ["log", "report"])
    assert (tail.read(), opened) == (b"", ["log", "report"])
    reports.append(report(len(b"step 1\nstep 2\n")))
    write(b"step 1\nstep 2\nTraceback: boom\n")
    assert tail.read() == b"step 2\n"
    del opened[:]
    write(b"step 1\nstep 2\nTraceback: boom\nmore\n")
    assert (tail.read(), tail.read(is_last=True), opened) == (b"", b"", [])


def failed(kind: TaskReportKind | None, exit_code: int = 1, wafer: str | None = None) -> TaskEnd:
    return TaskEnd(
        "rank-00002", 2, Role.STREAMER, "node3", exit_code, 0.0,
        report=report(0, kind) if kind else None, wafer=wafer,
    )  # fmt: skip


def test_an_error_has_rank_role_node_code_traceback_and_log() -> None:
    text = describe_cause(failed(TaskReportKind.ERROR), Path("/logs/x"), was_forwarded=False)
    assert text.splitlines() == [
        "csrun_wse: error: rank 2 (streamer) on node3 ended with exit code 1",
        "Traceback: boom",
        "log: /logs/x",
    ]


def test_a_users_error_is_its_sentence_and_a_place() -> None:
    text = describe_cause(failed(TaskReportKind.USER_ERROR, 2), Path("/logs/x"), False)
    first, second = text.splitlines()
    assert first == "csrun_wse: error: params.yaml: wrong"
    assert "rank 2 (streamer) on node3" in second
    assert "/logs/x" in second


def test_without_a_report_the_end_of_a_log_that_was_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(TAIL_LINES + 5)))
    shown = describe_cause(failed(None, -9), log, was_forwarded=False).splitlines()
    assert shown[0].endswith("was killed by signal 9 (SIGKILL)")
    assert shown[1:-1] == [f"  line {i}" for i in range(5, TAIL_LINES + 5)]
    assert len(describe_cause(failed(None, -9), log, was_forwarded=True).splitlines()) == 2


def test_a_wafer_is_named_by_its_system() -> None:
    text = describe_cause(failed(None, -11, "cs2-02"), Path("/none"), was_forwarded=False)
    assert "wafer of cs2-02" in text
    assert "signal 11 (SIGSEGV)" in text
    assert describe_exit(-33) == "was killed by signal 33 (unknown)"
