"""A cluster shared by accounts: access to another account's job, and what a task may request."""

import io
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from support.accounts import as_account, needs_two_accounts
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, Sandbox, until
from support.testbed import Testbed, site_file

from csrun.cli import cs, csctl, frame

pytestmark = pytest.mark.slurm
BOB, GROUP = 65532, 65530
LAYOUT = ("--total-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")


@pytest.fixture
def shared(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FcMnist]:
    """State folder as in docs/cs-login.md, outside of pytest's folders, which are private."""
    with TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        folder.chmod(0o755)
        site = site_file(folder, "slurm", shared=True)
        for made in ("state", "state/testbed"):
            os.mkdir(made)
            os.chown(made, 0, GROUP)
            os.chmod(made, 0o3770)
        for variable, value in (("CSRUN_STATE_DIR", "state"), ("CSRUN_SITE", str(site)),
                                ("SLURM_CONF", str(testbed.conf))):  # fmt: skip
            monkeypatch.setenv(variable, value)
        yield FcMnist(folder, site=site, variables=(("SLURM_CONF", str(testbed.conf)),))
        testbed.end_jobs()


@contextmanager
def training(place: FcMnist) -> Iterator["subprocess.Popen[str]"]:
    """Training that has started, and is interrupted at the end."""
    arguments = "--max_steps", str(MANY_STEPS)
    with place.start_wse(*arguments, layout=LAYOUT, interpreter="python") as launcher:
        try:
            assert launcher.stdout is not None
            next(line for line in launcher.stdout if "global_step = " in line)
            yield launcher
        finally:
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.communicate(timeout=STALL_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                raise


def as_bob(act: Callable[[], object]) -> object:
    return as_account(BOB, act, (GROUP,))


def printed(command: click.Command, *words: str) -> str:
    """Output of a command on this test's site."""
    said = io.StringIO()
    with redirect_stdout(said):
        frame.run(command, [*words])
    return said.getvalue()


def bob_reads(command: click.Command, *words: str) -> str:
    """Output for the other account; modules are imported as root, who can read them."""
    printed(command, *words)
    shown = as_bob(lambda: printed(command, *words))
    assert isinstance(shown, str), shown
    return shown


@needs_two_accounts
def test_another_account_reads_how_far_a_job_is(shared: FcMnist, testbed: Testbed) -> None:
    place = Path("state/testbed/board/0")
    with training(shared) as launcher:
        (shown,) = place.iterdir()
        until((shown / "telemetry.json").exists)
        telemetry = bob_reads(cs.cs, "telemetry", "--once", "--system", "cs2-01")
        assert "training" in telemetry
        assert "RUNNING" in bob_reads(cs.cs, "session", "list", "--system", "cs2-01")
        assert "4 on 2 nodes" in bob_reads(csctl.csctl, "get", "job", shown.name)
        for attempt in (
            lambda: os.listdir("state/testbed/accounts/0/jobs"),
            lambda: (shown / "record.json").write_text("{}"),
        ):
            assert isinstance(as_bob(attempt), PermissionError)
    assert launcher.returncode == 130
    assert not list(place.iterdir())
    until(lambda: not testbed.queue())


WAFER = """
import time
from csrun.context import SpawnWafer, current
if current().rank == 0:
    link = current().link()
    link.spawn_wafer(SpawnWafer("cs2-02", 4))  # the site has it, the job was not given it
    run = current().job_dir / "runs" / "4"
    run.mkdir(parents=True)
    (run / "endpoint").write_text("no endpoint")
    link.spawn_wafer(SpawnWafer("cs2-01", 4))
time.sleep(600)
"""


def test_a_wafer_is_of_the_system_that_the_job_was_given(cluster_place: Sandbox) -> None:
    cluster_place.script(WAFER)
    done = cluster_place.run(*LAYOUT, "python", "run.py")
    assert done.returncode == 1
    (logs,) = cluster_place.jobs.glob(".job-*/logs")
    assert "the chief's address is damaged" in (logs / "wafer-cs2-01.log").read_text()
    assert not (logs / "wafer-cs2-02.log").exists()
    said = "wafer of 'cs2-02' for run 4 refused: the job may only use cs2-01"
    assert said in (logs / "srun.log").read_text()
