"""Real jobs for tests: csrun_wse as a process, in a separate folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

STALL_S = 300.0  # for what must come, or go; tests do not measure it


class Started(subprocess.Popen[str]):
    """A started command; it is killed if its block fails or stalls."""

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None and self.poll() is None:
            kill_tree(self.pid)
        super().__exit__(*error)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants in all groups and sessions."""
    process = psutil.Process(pid)
    process.suspend()  # it starts nothing more
    for victim in (*process.children(recursive=True), process):
        with suppress(psutil.NoSuchProcess):
            victim.kill()


@dataclass(frozen=True)
class Sandbox:
    """A folder with a user's script, and a state folder next to it.

    `around` is a command that starts the launcher, e.g. to change its network, `site` the file of
    another site, `variables` are added to the environment.
    """

    path: Path
    around: tuple[str, ...] = ()
    site: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def jobs(self) -> Path:
        return self.path / "state" / ("testbed" if self.site else "local") / "jobs"

    def start(self, *arguments: str, command: str = "csrun_wse") -> "subprocess.Popen[str]":
        environment = {**os.environ, "CSRUN_STATE_DIR": str(self.path / "state")}
        environment.pop("CSRUN_SITE", None)
        environment |= dict(self.variables)
        environment |= {"CSRUN_SITE": str(self.site)} if self.site else {}
        return Started(
            [*self.around, sys.executable, "-c", entry_of(command), *arguments],
            cwd=self.path, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, *arguments: str, command: str = "csrun_wse"
    ) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments, command=command) as process:
            out, err = process.communicate(timeout=STALL_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def csctl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run(*arguments, command="csctl")

    def record(self, job_id: int) -> dict[str, Any]:
        """A job's record from its file."""
        path = self.jobs.parent / "records" / f"{job_id}.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def wait_for_state(self, job_id: int, state: str) -> None:
        """Wait until a job is in this state."""
        path = self.jobs.parent / "records" / f"{job_id}.json"
        until(lambda: path.exists() and self.record(job_id)["state"] == state)

    def script(self, text: str) -> str:
        (self.path / "run.py").write_text(text)
        return "run.py"

    def wait_for(self, *names: str) -> None:
        """Wait until the job has written these files into its folder."""
        until(lambda: all((self.path / name).exists() for name in names))

    def pid(self, name: str) -> int:
        """Process id that a task has written into a file."""
        self.wait_for(name)
        until(lambda: bool((self.path / name).read_text()))
        return int((self.path / name).read_text())


def entry_of(command: str) -> str:
    """Python code that starts a command as its console script does."""
    return f"from csrun.cli.entry import {command}; {command}()"


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline_s = time.monotonic() + STALL_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.01)


def gone(pids: list[int]) -> bool:
    """Whether all of the processes end within the wait."""
    deadline_s = time.monotonic() + STALL_S
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not any(psutil.pid_exists(pid) for pid in pids)


def over_its_limit(
    place: Sandbox, is_up: Callable[[], bool], *arguments: str, first_limit_s: int = 1
) -> tuple["subprocess.CompletedProcess[str]", str]:
    """A job that its time limit has ended when its tasks were up, and the limit as it is shown.

    The limit counts from the job's start: where the tasks need longer, they get twice the time.
    """
    limit_s = first_limit_s
    while True:
        done = place.run("--time-limit", f"0:{limit_s}", *arguments)
        if is_up() or limit_s >= STALL_S:
            return done, f"{limit_s // 60}:{limit_s % 60:02}"
        limit_s *= 2
