"""Files passed between an analysis and the runs that it starts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from csrun.advice.measurements import DeliveredRate, FeedRequest, analysis_folder
from csrun.base.errors import UsageError
from csrun.context import analysis_dir
from csrun.site import load

KILLED = """
import os, signal
from csrun.advice.measurements import analysis_folder
from csrun.site import load
with analysis_folder(load("local")):
    os.kill(os.getpid(), signal.SIGKILL)
"""


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
    assert DeliveredRate.read(tmp_path) is None
    DeliveredRate(1200.5, 3.0, 6).write(tmp_path)
    assert DeliveredRate.read(tmp_path) == DeliveredRate(1200.5, 3.0, 6)


def test_it_is_gone_afterwards_whatever_happens(state: str) -> None:
    with pytest.raises(KeyboardInterrupt), analysis_folder(load("local")) as folder:
        assert folder.is_dir()
        assert folder.is_relative_to(state)
        raise KeyboardInterrupt
    assert not folder.exists()


def test_a_killed_ones_is_removed_by_the_next_and_a_living_ones_is_not(state: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED])
    assert done.returncode == -signal.SIGKILL
    (left,) = Path(state).rglob("analysis-*")
    with analysis_folder(load("local")) as living:
        assert not left.exists()
        with analysis_folder(load("local")):
            assert living.exists()


def test_a_state_that_cannot_be_written_is_refused_with_its_name(state: str) -> None:
    Path(state).write_text("a file in its place")
    with (
        pytest.raises(UsageError, match=f"{state}.*set CSRUN_STATE_DIR"),
        analysis_folder(load("local")),
    ):
        pass
