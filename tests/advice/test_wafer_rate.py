"""Rate of the executor: measurement stored in the compile directory."""

from pathlib import Path

import pytest
from support.programs import Network

from csrun.advice import wafer_rate
from csrun.base.half_formats import FLOAT16
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.data import Dataset


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_no_values_of_its_steps_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wafer_rate, "WAFER_S", 0.05)
    network = Network(storage=FLOAT16)
    options = {"number_ranges": 1, "record_steps": (1, 2)}
    executable = network.compile(tmp_path, ExecutionMode.PIPELINED, **options)
    of_a_training = executable.directory / "ranges" / "1-0-0.ranges"
    of_a_training.parent.mkdir()
    of_a_training.touch()
    before = files_in(tmp_path)
    (batch,) = network.batches(1)
    data = Dataset.from_arrays(*batch).batch(network.batch)
    measured = wafer_rate.wafer_rate(executable, data, RunSettings())
    assert measured.samples_per_s > 0
    assert files_in(tmp_path) == before
