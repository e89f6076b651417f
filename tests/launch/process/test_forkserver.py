"""The fork server alone, when its launcher is killed."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import sleep

import psutil
import pytest

from csrun.launch.process import server
from csrun.launch.process.protocol import MessageSocket
from csrun.launch.process.server import ServerProcess

LAUNCHER = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
command = [sys.executable, "-P", "-m", "csrun.launch.process.forkserver"]
server = subprocess.Popen([*command, str(theirs.fileno()), ".", "slow"], pass_fds=[theirs.fileno()])
print(server.pid, flush=True)
server.wait()
"""
SLOW = """
import os, pathlib, time
pathlib.Path("importing").write_text(str(os.getpid()))
time.sleep(300)
"""


def test_a_launcher_that_is_killed_amid_the_imports_leaves_no_fork_server(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as launcher:
        assert launcher.stdout is not None
        forked = psutil.Process(int(launcher.stdout.readline()))
        while not (tmp_path / "importing").exists():
            forked.status()  # raises when it has ended
            sleep(0.01)
        launcher.kill()
    _, left = psutil.wait_procs([forked], timeout=120)
    for process in left:
        process.kill()
    assert not left


def test_a_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "END_S", 0.05)
    ours, its = socket.socketpair()
    with its, subprocess.Popen(["sleep", "600"]) as process:
        try:
            assert ServerProcess(process, MessageSocket(ours)).end() == -signal.SIGKILL
        finally:
            process.kill()
