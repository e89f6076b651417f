"""Result of a training, from its event files and performance.json."""

from pathlib import Path

import numpy as np

from csrun.records import performance
from csrun.records.events import EventWriter
from csrun.records.performance import Performance
from csrun.records.run_result import RunResult, result_of


def test_the_newest_step_with_a_loss_counts(tmp_path: Path) -> None:
    assert result_of(tmp_path) == RunResult()
    writer = EventWriter(tmp_path)
    for step in (1, 100):
        writer.scalars({"loss": 1 / step, "avg_samples_per_sec": 10.0 * step}, step)
    writer.scalars({"seconds/compute": 1.0}, 100)
    writer.close()
    loss = float(np.float32(0.01))
    assert result_of(tmp_path) == RunResult(100, loss, 1000.0)
    performance.write(tmp_path, Performance(1.0, 5.0, 1.0, 800.0, False, 12800, 16.0))
    assert result_of(tmp_path) == RunResult(100, loss, 800.0)
