"""Fixtures of the jobs' tests: a folder for each test, and a training shared by all."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist


def configured(folder: Path) -> FcMnist:
    place = FcMnist(folder)
    place.configure(runconfig__max_steps=20, runconfig__save_checkpoints_steps=5)
    return place


@pytest.fixture
def place(tmp_path: Path) -> FcMnist:
    return configured(tmp_path)


@dataclass(frozen=True)
class Trained:
    """A training of 20 steps with its checkpoints, in a folder that tests only read."""

    place: FcMnist
    done: "subprocess.CompletedProcess[str]"

    def copy_to(self, other: FcMnist) -> None:
        shutil.copytree(self.place.model_dir, other.model_dir)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """The training of `place` by `cpu` or by `wse`, on two streamers; each is run once."""

    @cache
    def train(command: str) -> Trained:
        place = configured(tmp_path_factory.mktemp(f"trained_by_{command}"))
        done: subprocess.CompletedProcess[str] = getattr(place, command)()
        assert done.returncode == 0, done.stderr
        return Trained(place, done)

    return train


@pytest.fixture
def trained(place: FcMnist, trained_once: Callable[[str], Trained]) -> FcMnist:
    """A place whose model_dir has such a training, by `cpu`."""
    trained_once("cpu").copy_to(place)
    return place


@pytest.fixture
def trained_on_system(place: FcMnist, trained_once: Callable[[str], Trained]) -> FcMnist:
    """A place whose model_dir has such a training, by `wse`."""
    trained_once("wse").copy_to(place)
    return place
