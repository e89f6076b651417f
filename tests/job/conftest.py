"""A folder of its own for each test of a job."""

from pathlib import Path

import pytest
from support.fc_mnist import FcMnist


@pytest.fixture
def place(tmp_path: Path) -> FcMnist:
    place = FcMnist(tmp_path)
    place.configure(runconfig__max_steps=20, runconfig__save_checkpoints_steps=5)
    return place
