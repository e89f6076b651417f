"""Commands whose standard output is full, closed, or a broken pipe."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, Sandbox

WSE = ("csrun_wse", "--total-nodes", "1", "--tasks-per-node", "1")
TALKS = """
trap 'echo bye; sleep 0.3; touch ended; exit' TERM
touch up
while :; do echo; sleep 0.1; done
"""
COMMANDS = [
    (*WSE, "touch", "ran"),
    ("csrun_wse", "--dry-run", "true"),
    ("csrun_wse", "--dry-run", "--json", "true"),
    ("csrun_wse", "--help"),
    ("csrun_cpu", "touch", "ran"),
    ("csrun_cpu", "--def-nodes"),
    ("csctl", "get", "systems"),
]


def run(
    command: tuple[str, ...], redirections: str, cwd: Path
) -> "subprocess.CompletedProcess[str]":
    """Command as a shell starts it."""
    name, *arguments = command
    words = [sys.executable, "-m", f"csrun.cli.{name}", *arguments]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *words],
        cwd=cwd, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_output_is_one_line_and_nothing_runs(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(command, "> /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"{command[0]}: error: standard output: No space left on device\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("redirections", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_closed_streams_are_done_without(
    command: tuple[str, ...], redirections: str, tmp_path: Path
) -> None:
    done = run(command, redirections, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    assert (tmp_path / "ran").exists() == ("touch" in command)


@pytest.mark.usefixtures("state")
def test_an_exit_code_needs_no_streams(tmp_path: Path) -> None:
    assert run((*WSE, "sh", "-c", "echo; exit 3"), "<&- >&- 2>&-", tmp_path).returncode == 3
    assert run(("csrun_wse", "--no-such-option"), "<&- >&- 2>&-", tmp_path).returncode == 2


def test_a_reader_that_leaves_has_no_say_in_how_the_job_ends(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    talks = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.1; done; exit 3"
    words = [sys.executable, "-m", "csrun.cli.csrun_wse", *WSE[1:], "sh", "-c", talks]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -3; exit ${PIPESTATUS[0]}', "bash", *words],
        cwd=tmp_path, env={**os.environ, "CSRUN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 3
    logs = place.jobs / "1" / "logs"
    assert f"csrun_wse: standard output: Broken pipe: the tasks' output is in {logs}" in done.stderr
    assert (logs / "rank-00000.log").read_text().endswith("line 9\n")
    assert place.record(1)["state"] == "FAILED"
    assert place.record(1)["exit_code"] == 3


def test_ctrl_c_that_ends_the_reader_too_is_ctrl_c(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    with place.start(*WSE[1:], "sh", "-c", TALKS) as launcher:
        place.wait_for("up")
        assert launcher.stdout is not None
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.close()
        assert launcher.wait(STALL_S) == 128 + signal.SIGINT
    assert (tmp_path / "ended").exists()


@pytest.mark.slow
def test_ctrl_c_that_ends_tee_as_well_cancels_a_training_in_order(tmp_path: Path) -> None:
    """As for `csrun_wse ... 2>&1 | tee log`: a terminal interrupts both."""
    place = FcMnist(tmp_path)
    place.configure()
    with place.start_wse("--max_steps", str(MANY_STEPS)) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        while "global_step = 50" not in launcher.stdout.readline():
            pass
        launcher.stdout.close()
        launcher.stderr.close()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(STALL_S) == 128 + signal.SIGINT
    assert not [p for p in tmp_path.rglob(".*") if "state" not in p.parts]
    assert place.record(1)["state"] == "CANCELLED"
    logs = place.jobs / "1" / "logs"
    log = (logs / "rank-00000.log").read_text()
    assert "Training interrupted: the next run in model_dir resumes from" in log
    assert "Ctrl-C (SIGINT): job terminated" in (logs / "launcher.log").read_text()
