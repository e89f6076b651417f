"""What is run of a recommended layout, and what other work there is beside it."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from support.pipelines import CLUSTER, analysis_of, measured, points_of

from csrun.advice.analysis.verification import OtherWork, runnable

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


def test_what_this_machine_cannot_carry_is_run_in_part() -> None:
    naps = measured(points_of(lambda n: 1000.0 * n, busy=lambda n: 0.001 * n), streaming=True)
    analysis = analysis_of(naps)
    assert analysis.solution.layout.streamers >= 198
    part = runnable(analysis)
    assert part.streamers <= 32  # 16 for each of two CPUs
    assert part.samples_per_s == pytest.approx(1000 * part.streamers)
    on_machines = analysis_of(naps, site=CLUSTER)
    assert runnable(on_machines) == on_machines.solution.layout
    assert runnable(analysis_of()) == analysis_of().solution.layout
