"""Reports of node agents: only while somebody asks."""

import os
from pathlib import Path

import pytest

from csrun.launch.process.task_usage import TaskUsage
from csrun.launch.slurm import usage_reports
from csrun.launch.slurm.usage_reports import UsageReporter, ask, reported

USAGE = TaskUsage("rank-00001", 7, "R", 10.0, 3.5, 1000)


@pytest.fixture(autouse=True)
def _usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_reports, "measure", lambda logs: {USAGE.name: USAGE})
    monkeypatch.setattr(usage_reports, "EVERY_S", 0.0)


def test_nothing_is_written_before_somebody_asks(tmp_path: Path) -> None:
    reporter = UsageReporter(tmp_path, 1)
    reporter.turn()
    assert list(tmp_path.iterdir()) == []
    ask(tmp_path)
    reporter.turn()
    assert reported(tmp_path) == {USAGE.name: USAGE}


def test_nothing_is_written_after_the_last_question(tmp_path: Path) -> None:
    ask(tmp_path)
    os.utime(tmp_path / usage_reports.ASKED_FILE, (1.0, 1.0))
    UsageReporter(tmp_path, 1).turn()
    assert reported(tmp_path) == {}


def test_an_old_or_damaged_report_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path)
    UsageReporter(tmp_path, 1).turn()
    (tmp_path / usage_reports.REPORTS.format(2)).write_text("{}")
    assert set(reported(tmp_path)) == {USAGE.name}
    monkeypatch.setattr(usage_reports, "ASKED_S", -1.0)
    assert reported(tmp_path) == {}


def test_a_folder_that_is_gone_has_no_usage(tmp_path: Path) -> None:
    ask(tmp_path / "gone")
    UsageReporter(tmp_path / "gone", 1).turn()
    assert reported(tmp_path / "gone") == {}
