"""Equal checksums of equal compiles: in any folder, at any time, by any process."""

import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path

import pytest
from support.fc_mnist import RUN, FcMnist

from csrun.estimator import CerebrasEstimator
from csrun.params import load

#: Artifacts without times in them.
REPRODUCIBLE = ("01_trace.mlir", "06_learning.mlir", "kernels.txt", "plan.json", "program.py")
SAME = {
    "another process": {},
    "no steps to train": {"runconfig__max_steps": 7},
    "another seed": {"runconfig__seed": 2},
    "other log lines": {"runconfig__log_steps": 3},
    "other checkpoints": {"runconfig__save_checkpoints_steps": 2},
}
OTHER = {
    "sizes": {"model__hidden_sizes": [6]},
    "batch": {"train_input__batch_size": 64},
    "learning rate": {"optimizer__learning_rate": 0.5},
    "momentum": {"optimizer__momentum": 0.5},
    "precision": {"runconfig__precision": "float64"},
    "minibatches": {"runconfig__minibatches_in_flight": 2},
}


def compiled(folder: Path, script: str = RUN, **changes: object) -> tuple[str, dict[str, bytes]]:
    """The name of the compile directory, and what in it is the same each time."""
    place = FcMnist(folder)
    place.configure(**({"model__hidden_sizes": [5]} | changes))
    command = [sys.executable, script, *place.own(("--compile_only",))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return artifacts(place)


def compiled_here(folder: Path, **changes: object) -> tuple[str, dict[str, bytes]]:
    """The same of a compile in this process, which needs the fixture `fc_mnist`."""
    place = FcMnist(folder)
    place.configure(**({"model__hidden_sizes": [5]} | changes))
    model, data = import_module("model"), import_module("data")
    with chdir(folder):
        params = load(import_module("params").Params, Path("params.yaml"))
        estimator = CerebrasEstimator(model.model_fn, "model_dir", params.runconfig, params)
        estimator.compile(data.train_input_fn)
    return artifacts(place)


def artifacts(place: FcMnist) -> tuple[str, dict[str, bytes]]:
    (found,) = place.model_dir.glob("tfcs_*")
    return found.name, {name: (found / name).read_bytes() for name in REPRODUCIBLE}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    return compiled(tmp_path_factory.mktemp("first"))


@pytest.mark.usefixtures("fc_mnist")
@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_does_not_count(tmp_path: Path, first: object, changes: dict[str, object]) -> None:
    assert compiled_here(tmp_path, **changes) == first


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_order_of_sets_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: object, seed: str
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert compiled(tmp_path) == first


def test_where_the_model_is_written_does_not_count(tmp_path: Path, first: object) -> None:
    text = (Path(RUN).parent / "model.py").read_text()
    script = FcMnist(tmp_path).copy(model=f"# a line more\n{text}")
    assert compiled(tmp_path, script) == first


@pytest.mark.usefixtures("fc_mnist")
@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_what_counts(tmp_path: Path, first: tuple[str, object], changes: dict[str, object]) -> None:
    assert compiled_here(tmp_path, **changes)[0] != first[0]
