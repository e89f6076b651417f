"""A training with minibatches in flight and traced steps, for the tests of the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.fc_mnist import FcMnist, scalars

FIRST, LAST, STEPS = 6, 8, 40
MINIBATCHES = 4


@dataclass(frozen=True)
class TrainedRun:
    """Folder of a run, with its files read by other tools than csrun."""

    model_dir: Path

    @property
    def logged(self) -> dict[int, dict[str, float]]:
        """Values by step and tag. Source: protobuf's own reader of the events"""
        found: dict[int, dict[str, float]] = {}
        for path in self.model_dir.glob("events.out.tfevents.*"):
            for step, values in scalars(path):
                if values:
                    found.setdefault(step, {}).update(values)
        return found

    def json(self, pattern: str) -> Any:
        (path,) = self.model_dir.glob(pattern)
        return json.loads(path.read_text())


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    place = FcMnist(tmp_path_factory.mktemp("dashboard"))
    place.configure(
        model__hidden_sizes=[40, 30],
        runconfig__max_steps=STEPS,
        runconfig__log_steps=5,
        runconfig__save_checkpoints_steps=20,
        runconfig__minibatches_in_flight=MINIBATCHES,
        runconfig__trace_steps=[FIRST, LAST],
    )
    done = place.cpu("--mode", "train")
    assert done.returncode == 0, done.stderr
    return TrainedRun(place.model_dir)
