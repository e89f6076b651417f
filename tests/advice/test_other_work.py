"""CPU time of others is told from that of the command's own children."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from csrun.advice.other_work import OtherWork

SPIN = "import time\nwhile time.process_time() < 1.0: pass"


def test_what_our_children_used_is_not_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine says that its CPUs were used for four seconds; one of these was our child's."""
    used_s = [0.0]

    def cpu_times(percpu: bool) -> list[SimpleNamespace]:
        share = used_s[0] / len(os.sched_getaffinity(0))
        return [SimpleNamespace(user=share, system=0.0)] * psutil.cpu_count()

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    started, beside = time.perf_counter(), OtherWork()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    used_s[0] = 4.0
    other_s = beside.cpus() * (time.perf_counter() - started)
    assert other_s == pytest.approx(3, abs=0.3)
