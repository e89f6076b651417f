"""CPU use by other programs during a measurement."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from csrun.advice import other_processes
from csrun.advice.other_processes import BackgroundLoad

SPIN = "import time\nwhile time.process_time() < 1.0: pass"


def test_what_our_children_used_is_not_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's CPUs were used for four seconds, one of them by our child."""
    used_s = [0.0]

    def cpu_times(percpu: bool) -> list[SimpleNamespace]:
        share = used_s[0] / len(os.sched_getaffinity(0))
        return [SimpleNamespace(user=share, system=0.0)] * psutil.cpu_count()

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    started, beside = time.perf_counter(), BackgroundLoad()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    used_s[0] = 4.0
    other_s = beside.use().cpus * (time.perf_counter() - started)
    assert other_s == pytest.approx(3, abs=0.3)


def test_the_busiest_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an hour, with a fake clock, compilers used most CPU time and a shell little."""
    before = {(1, "sh"): 5.0, (2, "cc1"): 100.0}
    after = {(1, "sh"): 6.0, (2, "cc1"): 2100.0, (3, "cc1"): 1000.0, (4, "make"): 1000.0}
    shown = iter((before, after))
    monkeypatch.setattr(other_processes, "_cpu_s_by_process", lambda: next(shown))
    beside = BackgroundLoad()
    beside._started -= 3600.0
    assert beside.use().busiest == ("cc1", "make")


def test_our_own_processes_are_not_among_the_others() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        others = {pid for pid, _ in other_processes._cpu_s_by_process()}
        child.kill()
    assert not {os.getpid(), child.pid} & others
