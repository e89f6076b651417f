"""Use of CPU and memory by tasks, against psutil."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.jobs import kill_tree, until

from csrun.launch.process.task_usage import measure

BUSY = """
import os, subprocess, sys, time
block = bytearray(50_000_000)
child = subprocess.Popen([sys.executable, "-uc", "import time; b = bytearray(30_000_000); print(1);"
                          "time.sleep(600)"])
begun = time.process_time()
while time.process_time() - begun < 0.3:
    pass
print("up", flush=True)
time.sleep(600)
"""


@contextmanager
def task(logs: Path, name: str) -> Iterator[psutil.Process]:
    """Process of a task and its child, both with a log."""
    logs.mkdir(exist_ok=True)
    log = logs / f"{name}.log"
    with log.open("wb") as file, subprocess.Popen([sys.executable, "-uc", BUSY], stdout=file) as p:
        until(lambda: "up" in log.read_text() and "1" in log.read_text())
        started = psutil.Process(p.pid)
        try:
            until(lambda: all(sleeps(each) for each in (started, *started.children())))
            yield started
        finally:
            kill_tree(p.pid)


def sleeps(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_SLEEPING)


def test_a_task_is_all_processes_that_write_its_log(tmp_path: Path) -> None:
    with task(tmp_path / "logs", "rank-00003") as process:
        found = measure(tmp_path / "logs")["rank-00003"]
        both = [process, *process.children()]
        assert found.pid == process.pid
        assert found.state == "S"
        assert found.memory_bytes == pytest.approx(sum(p.memory_info().rss for p in both), rel=0.01)
        assert found.memory_bytes > 80_000_000
        used_s = sum(sum(p.cpu_times()[:2]) for p in both)
        assert found.cpu_s == pytest.approx(used_s, abs=0.05)
        assert found.cpu_s >= 0.3
        process.suspend()  # it runs until it has taken the signal
        until(lambda: measure(tmp_path / "logs")["rank-00003"].state == "T")


def test_a_folder_is_its_name_and_its_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with task(tmp_path / "logs", "wafer-cs2-01"):
        assert set(measure(tmp_path / "link" / "logs")) == {"wafer-cs2-01"}
        assert measure(tmp_path / "log") == {}
    until(lambda: measure(tmp_path / "logs") == {})  # a killed process ends a little later
    assert os.getpid() not in {usage.pid for usage in measure(tmp_path).values()}
