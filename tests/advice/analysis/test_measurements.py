"""What an analysis and the runs that it starts leave for each other."""

from pathlib import Path

import pytest

from csrun.advice.analysis.measurements import Fed, FeedRequest
from csrun.context import analysis_dir


def test_a_run_knows_the_analysis_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CSRUN_ANALYSIS_DIR", raising=False)
    assert analysis_dir() is None
    monkeypatch.setenv("CSRUN_ANALYSIS_DIR", str(tmp_path))
    assert analysis_dir() == tmp_path


def test_a_run_feeds_only_when_it_was_asked_to(tmp_path: Path) -> None:
    assert FeedRequest.read(tmp_path) is None
    FeedRequest(3.5).write(tmp_path)
    assert FeedRequest.read(tmp_path) == FeedRequest(3.5)


def test_what_was_fed_is_read_as_it_was_left(tmp_path: Path) -> None:
    assert Fed.read(tmp_path) is None
    Fed(1200.5, 3.0, 6).write(tmp_path)
    assert Fed.read(tmp_path) == Fed(1200.5, 3.0, 6)
