"""Record of the account that cancelled a job, next to scancel's results."""

import getpass
import os
import signal
import socket
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError
from csrun.cli.array_commands import _end_launcher
from csrun.context import Rerun
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import Launcher
from csrun.launch.slurm import sinfo
from csrun.launch.slurm.backend import SlurmBackend
from csrun.site import load

SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1")
NOTED = f"cancelled by {getpass.getuser()} (csctl cancel)"
DOWN = "scancel: error: slurm_kill_job2() failed: Unable to contact slurm controller"
REFUSED = "scancel: error: Kill job error on job id 7: Job/step already completing or completed"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    monkeypatch.setattr(SlurmBackend, "folder", lambda backend, job_id: tmp_path)
    monkeypatch.setattr(sinfo, "require_commands", lambda site: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer(tmp_path, "")
    return JobFolder(tmp_path)


def answer(path: Path, error: str) -> None:
    """Set scancel's answer."""
    program = path / "scancel"
    program.write_text(f"#!/bin/sh\necho '{error}' >&2\n")
    program.chmod(0o700)


@pytest.mark.parametrize("error", [DOWN, REFUSED], ids=["down", "refused"])
def test_the_note_goes_if_slurm_does_not_cancel(folder: JobFolder, error: str) -> None:
    """A job that ends later ends for another reason."""
    answer(folder.path, error)
    with pytest.raises(CsrunError):
        SlurmBackend(SITE).cancel(7, "csctl cancel")
    ended_by = "time limit of Slurm reached"
    assert folder.reason_of(signal.SIGTERM, ended_by) == ended_by


def test_a_job_that_is_ending_keeps_its_note(folder: JobFolder) -> None:
    SlurmBackend(SITE).cancel(7, "csctl cancel")
    assert folder.reason_of(signal.SIGTERM) == NOTED
    answer(folder.path, REFUSED)
    with pytest.raises(CsrunError):
        SlurmBackend(SITE).cancel(7, "again")
    assert folder.reason_of(signal.SIGTERM) == NOTED


def test_a_run_of_csrun_compare_has_been_ended_by_it(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Rerun("model_dir", (1, 2), False).variables().items():
        monkeypatch.setenv(name, value)
    assert folder.reason_of(signal.SIGTERM).startswith("ended by csrun compare")
    assert folder.reason_of(signal.SIGTERM, "preempted") == "preempted"
    assert folder.reason_of(signal.SIGINT) == "Ctrl-C (SIGINT)"


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_a_launcher_of_an_array_that_is_not_signalled_leaves_no_note(
    folder: JobFolder, host: str
) -> None:
    launcher = Launcher(host, 2**22 + 1, 0)  # above the largest process id, proc(5)
    assert not _end_launcher(launcher, 1.0, [folder], "csctl cancel array 1")
    assert folder.cancellation == ""
