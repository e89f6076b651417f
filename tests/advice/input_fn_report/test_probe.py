"""Times of a pipeline in the report: from a short probe, or from an analysis."""

import time

import numpy as np
import pytest
from support.pipelines import STAGES, measured, points_of

from csrun.advice.input_fn_report import Probe, probe
from csrun.advice.measurements import StageCost
from csrun.data import Dataset


def test_a_measured_worker_gives_its_times_a_batch() -> None:
    """128 samples per batch, 7 us of the map each; one worker delivers 100,000 per second."""
    stages = (*STAGES, StageCost("map nap", 40e-6, 0.0, 10e-6))
    found = Probe.of_worker(measured(points_of(lambda n: 100_000.0 * n, stages=stages)))
    assert found.costs["map load"].wall_s == pytest.approx(128 * 7e-6)
    assert found.costs["map load"].cpu_s == pytest.approx(128 * 6.5e-6)
    assert found.batch_s == pytest.approx(128 / 100_000)
    assert found.spreads["map nap"] == pytest.approx(128 * 10e-6)


@pytest.mark.alone
def test_a_probe_measures_how_much_a_time_scatters() -> None:
    """Every other batch sleeps for 12 ms: mean 6 ms, deviation 6 ms."""
    slept = []

    def nap(x: object) -> object:
        time.sleep(0.012 * (len(slept) % 2))
        slept.append(x)
        return x

    data = Dataset.from_arrays(np.arange(640)).batch(16).map(nap)
    found = probe(data)
    assert found.spreads["map nap"] > max(0.002, found.spreads["from_arrays"])
    assert not probe(data.map(lambda x: x, num_parallel_calls=2)).spreads
