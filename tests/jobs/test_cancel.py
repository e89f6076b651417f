"""csctl cancel: signalled processes, permissions, and processes that must not be signalled."""

import getpass
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
from support.jobs import STALL_S, Sandbox, gone, until
from support.terminals import terminal
from support.testbed import NODES, site_file

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.jobs import cancel
from csrun.site import load

NOBODY = 65534
ALL_NODES = ("--total-nodes", f"{NODES}", "--tasks-per-node", "1")
#: One task holds the nodes of all.
UNTIL_GO = '[ "$SLURM_PROCID" != 0 ] || { touch up; while [ ! -e go ]; do sleep 0.05; done; }'
ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")
CANCELLED = f"cancelled by {getpass.getuser()} (csctl cancel)"


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_a_running_job_ends_in_order(place: Sandbox) -> None:
    script = "trap 'touch told; exit 0' TERM; touch up; while :; do sleep 0.05; done"
    with place.start(*ONE_TASK, "sh", "-c", script) as launcher:
        place.wait_for("up")
        done = place.csctl("cancel", "job", "1")
        assert (done.returncode, done.stdout) == (0, "job 1: CANCELLED, exit code 143\n")
        _, err = launcher.communicate(timeout=STALL_S)
    assert (place.path / "told").exists()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert f"csrun_wse: {CANCELLED}: job terminated" in err
    assert place.record(1)["cause"] == CANCELLED
    assert CANCELLED in place.csctl("get", "jobs", "--all").stdout


def test_waiting_jobs_leave_the_line(place: Sandbox) -> None:
    """One job that is signalled, and one that is stopped."""
    place = replace(place, site=site_file(place.path, "local"))
    waits = f"csrun: waiting for 1 of the {NODES} nodes"
    with running(place, ALL_NODES):
        with place.start(*ONE_TASK, "true") as second:
            assert second.stderr is not None
            assert any(line.startswith(waits) for line in second.stderr)
            assert f"waits for 1 of the {NODES}" in place.csctl("get", "job", "2").stdout
            assert place.csctl("cancel", "job", "2").returncode == 0
            _, err = second.communicate(timeout=STALL_S)
        assert second.returncode == 143
        assert f"csrun_wse: error: {CANCELLED}: job ended before it started" in err
        assert place.record(2)["cause"] == f"{CANCELLED}: job ended before it started"
        with place.start(*ONE_TASK, "true") as third:
            assert third.stderr is not None
            assert any(line.startswith(waits) for line in third.stderr)
            third.send_signal(signal.SIGSTOP)
            assert place.csctl("cancel", "job", "3").returncode == 0
            third.communicate(timeout=STALL_S)
        assert not list((place.jobs.parent / "nodes" / "line").glob("ticket.*"))
    assert place.record(1)["exit_code"] == 0
    for job_id in (2, 3):
        assert place.record(job_id)["state"] == "CANCELLED"
        assert place.record(job_id)["started"] is None


def test_a_command_of_csrun_cpu_that_does_not_heed_it(place: Sandbox) -> None:
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    place = replace(place, site=site_file(place.path, "local", grace_s=1))
    with place.start("sh", "-c", script, command="csrun_cpu") as front:
        pid = place.pid("pid")
        done = place.csctl("cancel", "job", "1")
        assert done.stdout == "job 1: CANCELLED, exit code 137\n"
        _, err = front.communicate(timeout=STALL_S)
    assert f"csrun_cpu: {CANCELLED}: command terminated" in err
    assert place.record(1)["cause"] == CANCELLED
    assert gone([pid])
    assert front.returncode == 137


def test_a_command_stopped_by_ctrl_z_ends_in_order(place: Sandbox) -> None:
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


def test_an_unknown_job_is_refused(place: Sandbox) -> None:
    done = place.csctl("cancel", "job", "5")
    assert done.returncode == 2
    assert "job 5: no such job on site local" in done.stderr


def test_a_job_that_was_killed_has_ended_already(place: Sandbox) -> None:
    with place.start(*ONE_TASK, "sh", "-c", "touch up; sleep 60") as launcher:
        place.wait_for("up")
        launcher.kill()
        launcher.communicate(timeout=STALL_S)
    until(lambda: ": LOST" in place.csctl("cancel", "job", "1").stderr)


@needs_two_accounts
def test_someone_elses_job_is_refused(place: Sandbox) -> None:
    """A state folder made by csrun is readable by its own account only."""
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


def test_a_later_process_of_the_launchers_number_is_not_hit(
    place: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(place.path / "state"))
    monkeypatch.setattr(cancel, "SPARE_S", 0.2)
    with running(place) as launcher, bystander() as process:
        changed = place.record(1)["launcher"] | {"pid": process.pid}
        change_record(place, launcher=changed)
        with pytest.raises(CsrunError, match="job 1: still running"):
            cancel.cancel(load("local"), 1, grace_s=0, command="csctl cancel")
        assert process.poll() is None
    assert launcher.returncode == 0
    assert place.record(1)["state"] == "COMPLETED"


def test_who_may_not_cancel_a_job_and_where_it_ended(place: Sandbox) -> None:
    """A record belongs to the owner of its file, whatever its content says."""
    with running(place) as launcher:
        told = place.record(1)["launcher"]
        change_record(place, launcher=told | {"host": "elsewhere"})
        done = place.csctl("cancel", "job", "1")
        assert done.returncode == 1
        assert "was launched on elsewhere" in done.stderr
        change_record(place, launcher=told)
        if os.getuid() == 0:  # only root can be someone else
            record = place.jobs.parent / "records" / "1.json"
            os.chown(record, NOBODY, NOBODY)
            done = place.csctl("cancel", "job", "1")
            assert done.returncode == 2
            assert "job 1 is nobody's: only its owner can cancel it" in done.stderr
            os.chown(record, 0, 0)
        assert launcher.poll() is None
    done = place.csctl("cancel", "job", "1")
    assert done.returncode == 2
    assert "csctl: error: job 1 already ended at 2" in done.stderr
    assert ": COMPLETED" in done.stderr


@contextmanager
def running(
    place: Sandbox, layout: tuple[str, ...] = ONE_TASK
) -> Iterator["subprocess.Popen[str]"]:
    """Running job, released at the end."""
    with place.start(*layout, "sh", "-c", UNTIL_GO) as launcher:
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


def change_record(place: Sandbox, **changes: object) -> None:
    path = place.jobs.parent / "records" / "1.json"
    path.write_bytes(stored.text_of(place.record(1) | changes))
