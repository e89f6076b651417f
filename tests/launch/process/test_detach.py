"""csrun_wse --detach: the job runs in the background, controlled by csctl."""

import os
import sys
from pathlib import Path

import msgspec
import pytest
from support.jobs import STALL_S, Sandbox, gone
from support.terminals import terminal

from csrun.base.errors import UsageError
from csrun.jobs.request import JobRequest
from csrun.launch.slurm.backend import SlurmBackend
from csrun.site import Scheduler, load

ONE_TASK = ("--detach", "--total-nodes", "1", "--tasks-per-node", "1")


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_the_job_goes_on_when_its_terminal_is_gone(place: Sandbox) -> None:
    script = "echo $$ > pid; echo begins; while [ ! -e go ]; do sleep 0.05; done; echo ends; exit 3"
    place.script("")
    environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state")}
    command = (
        f"cd {place.path} && exec {sys.executable} -m csrun.cli.csrun_wse {' '.join(ONE_TASK)}"
    )
    with terminal("sh", "-c", f"{command} sh -c '{script}'", environment=environment) as tty:
        tty.wait_for("job 1 runs in the background: 'csctl logs 1 --follow' shows its output")
        assert tty.exit_code() == 0
    place.wait_for("pid")
    place.wait_for_state(1, "RUNNING")
    with place.start("logs", "1", "--follow", command="csctl") as follower:
        (place.path / "go").touch()
        assert follower.communicate(timeout=STALL_S)[0] == "begins\nends\n"
    place.wait_for_state(1, "FAILED")
    assert place.csctl("logs", "1").stdout == "begins\nends\n"
    said = (place.jobs / "1" / "logs" / "launcher.log").read_text()
    assert "csrun_wse: error: rank 0 (task) on node1 ended with exit code 3" in said


def test_it_is_cancelled_as_any_job(place: Sandbox) -> None:
    done = place.run(*ONE_TASK, "sh", "-c", "echo $$ > pid; sleep 60")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith("job 1 runs in the background")
    pid = place.pid("pid")
    assert place.csctl("cancel", "job", "1").stdout == "job 1: CANCELLED, exit code 143\n"
    assert gone([pid, place.record(1)["launcher"]["pid"]])


def test_what_fails_before_there_is_a_job_is_told_at_once(place: Sandbox) -> None:
    (place.path / "state").write_text("a file, no folder")
    done = place.run(*ONE_TASK, "true")
    assert done.returncode == 2
    assert done.stderr.count("csrun_wse: error: ") == 1
    assert "CSRUN_STATE_DIR" in done.stderr


def test_a_cluster_has_sbatch_for_it() -> None:
    site = msgspec.structs.replace(load("local"), scheduler=Scheduler.SLURM)
    with pytest.raises(UsageError, match=r"--detach needs scheduler local.*--sbatch"):
        SlurmBackend(site).plan(JobRequest(("true",), detach=True))
