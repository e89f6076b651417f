"""What tests share does not fail a test that comes later."""

import subprocess

import psutil
import pytest
from support.jobs import Started, until


def test_what_stalls_is_killed_with_all_that_it_has_started() -> None:
    pids: list[int] = []
    script = "setsid sleep 600 & echo $!; trap '' TERM; sleep 600"
    with (
        pytest.raises(subprocess.TimeoutExpired),
        Started(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as stalled,
    ):
        assert stalled.stdout is not None
        pids += [stalled.pid, int(stalled.stdout.readline())]
        stalled.communicate(timeout=0.1)
    until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    """Whether a process is more than an entry that its parent has not yet read."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
