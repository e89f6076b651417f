"""csctl cancel: who is asked, who may ask, and what must never be hit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.accounts import needs_two_accounts
from support.jobs import STALL_S, Workplace, gone, until
from support.terminals import terminal
from support.testbed import site_file

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.jobs import cancel
from csrun.site import load

NOBODY = 65534
ALL_NODES = ("--total-nodes", "16", "--tasks-per-node", "1")
UNTIL_GO = "touch up; while [ ! -e go ]; do sleep 0.05; done"
ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_a_running_job_ends_in_order(place: Workplace) -> None:
    script = "trap 'touch told; exit 0' TERM; touch up; while :; do sleep 0.05; done"
    with place.start(*ONE_TASK, "sh", "-c", script) as launcher:
        place.wait_for("up")
        done = place.csctl("cancel", "job", "1")
        assert (done.returncode, done.stdout) == (0, "job 1: CANCELLED, exit code 143\n")
        _, err = launcher.communicate(timeout=STALL_S)
    assert (place.path / "told").exists()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert "csrun_wse: SIGTERM: job terminated" in err


def test_a_waiting_job_leaves_the_line(place: Workplace) -> None:
    with place.start(*ALL_NODES, "sh", "-c", UNTIL_GO) as first:
        place.wait_for("up")
        with place.start(*ONE_TASK, "true") as second:
            until(lambda: place.csctl("get", "job", "2").stdout.count("waits for 1 of the 16") == 1)
            assert place.csctl("cancel", "job", "2").returncode == 0
            _, err = second.communicate(timeout=STALL_S)
        assert second.returncode == 143
        assert "csrun_wse: error: SIGTERM: job cancelled before it started" in err
        assert not list((place.jobs.parent / "nodes" / "line").glob("ticket.*"))
        (place.path / "go").touch()
        first.communicate(timeout=STALL_S)
    assert first.returncode == 0
    assert place.record(2)["state"] == "CANCELLED"
    assert place.record(2)["started"] is None


def test_a_command_of_csrun_cpu_that_does_not_heed_it(place: Workplace) -> None:
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    place = replace(place, site=site_file(place.path, "local", grace_s=1))
    with place.start("sh", "-c", script, command="csrun_cpu") as front:
        pid = place.pid("pid")
        done = place.csctl("cancel", "job", "1")
        assert done.stdout == "job 1: CANCELLED, exit code 137\n"
        front.communicate(timeout=STALL_S)
    assert gone([pid])
    assert front.returncode == 137


def test_a_stopped_job_that_waits_leaves_the_line(place: Workplace) -> None:
    with place.start(*ALL_NODES, "sh", "-c", UNTIL_GO) as first:
        place.wait_for("up")
        with place.start(*ONE_TASK, "true") as second:
            place.wait_for_state(2, "PENDING")
            second.send_signal(signal.SIGSTOP)
            assert place.csctl("cancel", "job", "2").returncode == 0
            second.communicate(timeout=STALL_S)
        (place.path / "go").touch()
        first.communicate(timeout=STALL_S)


def test_a_command_stopped_by_ctrl_z_ends_in_order(place: Workplace) -> None:
    (place.path / "run.sh").write_text(
        "trap 'touch told; exit 5' TERM; touch up; while :; do sleep 0.05; done"
    )
    environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state"), "PS1": "ready> "}
    with terminal("bash", "--norc", "--noprofile", "-i", environment=environment) as tty:
        tty.wait_for("ready> ")
        tty.type(f"cd {place.path}; {sys.executable} -m csrun.cli.csrun_cpu sh run.sh\n")
        place.wait_for("up")
        tty.type("\x1a")
        tty.wait_for("Stopped")
        done = place.csctl("cancel", "job", "1")
        assert done.stdout == "job 1: CANCELLED, exit code 5\n"
    assert (place.path / "told").exists()


def test_an_ended_job_is_refused(place: Workplace) -> None:
    assert place.run(*ONE_TASK, "true").returncode == 0
    done = place.csctl("cancel", "job", "1")
    assert done.returncode == 2
    assert "csctl: error: job 1 already ended at 2" in done.stderr
    assert ": COMPLETED" in done.stderr


def test_an_unknown_job_is_refused(place: Workplace) -> None:
    done = place.csctl("cancel", "job", "5")
    assert done.returncode == 2
    assert "job 5: no such job on site local" in done.stderr


def test_a_job_that_was_killed_has_ended_already(place: Workplace) -> None:
    with place.start(*ONE_TASK, "sh", "-c", "touch up; sleep 60") as launcher:
        place.wait_for("up")
        launcher.kill()
        launcher.communicate(timeout=STALL_S)
    until(lambda: ": LOST" in place.csctl("cancel", "job", "1").stderr)


@needs_two_accounts
def test_someone_elses_job_is_refused(place: Workplace) -> None:
    """Of a state folder that csrun has made nobody else reads anything."""
    place.path.chmod(0o755)
    with running(place) as launcher:
        program = (
            "import os\nfrom csrun.cli import csctl, frame\n"
            "say = lambda *words: frame.run(csctl.csctl, [*words])\n"
            "say('get', 'job', '1'), say('cancel', 'job', '9')\n"  # modules are root's to read
            f"os.setuid({NOBODY})\n"
            "raise SystemExit(say('get', 'job', '1') and say('cancel', 'job', '1'))"
        )
        environment = os.environ | {"CSRUN_STATE_DIR": "state"}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=place.path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert launcher.poll() is None
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("state      RUNNING") == 1
    said = "csctl: error: state/local/records/1.json: the record cannot be read: Permission denied"
    assert done.stderr.count(said) == 2
    assert launcher.returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")
def test_a_forged_record_ends_no_process(place: Workplace) -> None:
    """A record is of the account that its file belongs to, whatever is written in it."""
    with running(place) as launcher:
        record = place.path / "state/local/records/1.json"
        os.chown(record, NOBODY, NOBODY)
        done = place.csctl("cancel", "job", "1")
        assert launcher.poll() is None
    assert done.returncode == 2
    assert "job 1 is nobody's: only its owner can cancel it" in done.stderr


def test_a_later_process_of_the_launchers_number_is_not_hit(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(place.path / "state"))
    monkeypatch.setattr(cancel, "SPARE_S", 0.2)
    with running(place) as launcher, bystander() as process:
        changed = place.record(1)["launcher"] | {"pid": process.pid}
        change_record(place, launcher=changed)
        with pytest.raises(CsrunError, match="job 1: still running"):
            cancel.cancel(load("local"), 1, grace_s=0)
        assert process.poll() is None
    assert launcher.returncode == 0
    assert place.record(1)["state"] == "COMPLETED"


def test_a_job_of_another_machine_is_cancelled_there(place: Workplace) -> None:
    with running(place) as launcher:
        change_record(place, launcher=place.record(1)["launcher"] | {"host": "elsewhere"})
        done = place.csctl("cancel", "job", "1")
    assert done.returncode == 1
    assert "was launched on elsewhere" in done.stderr
    assert launcher.returncode == 0


@contextmanager
def running(place: Workplace) -> Iterator["subprocess.Popen[str]"]:
    """A job that runs, and is let go at the end."""
    with place.start(*ONE_TASK, "sh", "-c", UNTIL_GO) as launcher:
        try:
            place.wait_for("up")
            yield launcher
        finally:
            (place.path / "go").touch()
            launcher.communicate(timeout=STALL_S)


@contextmanager
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


def change_record(place: Workplace, **changes: object) -> None:
    path = place.jobs.parent / "records" / "1.json"
    path.write_bytes(stored.text_of(place.record(1) | changes))
