"""The folder of an analysis: there as long as it is wanted, and no longer."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from csrun.advice.folder import analysis_folder
from csrun.base.errors import UsageError
from csrun.site import load

KILLED = """
import os, signal
from csrun.advice.folder import analysis_folder
from csrun.site import load
with analysis_folder(load("local")):
    os.kill(os.getpid(), signal.SIGKILL)
"""


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
