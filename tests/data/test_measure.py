"""What workers of a measurement tell of the CPUs."""

import numpy as np
import pytest

from csrun.data import Dataset
from csrun.data.batches import Delivery
from csrun.data.measure import measure
from csrun.data.stages import StageClock


def test_a_worker_that_shares_its_cpu_says_how_long_it_waited() -> None:
    """Three that never pause, on one CPU: what they did not get of it they have waited for."""

    def make() -> Dataset:
        return Dataset.from_arrays(np.arange(64.0)).batch(8)

    def consume(delivery: Delivery, clock: StageClock) -> int:
        return 8

    point = measure(make, consume, tasks=3, cpus=1, seconds=0.5, real_cpus=[0])
    assert point.busy_cpus <= 1.1
    assert point.busy_cpus + point.starved_cpus == pytest.approx(3, rel=0.15)
