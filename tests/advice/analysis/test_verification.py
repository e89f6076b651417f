"""Runs that verify a recommended layout."""

import pytest
from support.pipelines import CLUSTER, analysis_of, measured, points_of

from csrun.advice.analysis.verification import runnable


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
