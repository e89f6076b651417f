"""Operators of two trainings, whose scripts are run again with values recorded."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from csrun.advice.operator_comparison import OperatorComparison, Tolerance, compare_operators
from csrun.advice.operator_comparison.recorded_run import RecordedRun
from csrun.base.errors import UsageError
from csrun.base.run_command import RunCommand
from csrun.cli.csrun import csrun
from csrun.cli.frame import run

SCRIPT = """
import sys

import numpy as np

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from csrun.kernels import normalization

folder, *options = sys.argv[1:]
given = dict(option.split("=") for option in options)
layer_norm = normalization.layer_norm


def wrong_layer_norm(x, weight, bias, results, *others):
    layer_norm(x, weight, bias, results, *others)
    results.out[3, 5] *= 1.25


if given.pop("planted", None):
    normalization.layer_norm = wrong_layer_norm
momentum = float(given.pop("momentum", 0.9))


def model_fn(features, labels, mode, params):
    hidden = nn.Dense(16, activation="relu", name="first")(features)
    hidden = nn.LayerNorm(name="norm")(hidden)
    logits = nn.Dense(4, name="last")(hidden)
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode, loss, nn.SGD(0.1, momentum=momentum).minimize(loss))


def input_fn(params):
    random = np.random.default_rng(1)
    x = random.standard_normal((64, 8)).astype(np.float32)
    return Dataset.from_arrays(x, (x[:, 0] > 0).astype(np.int32)).repeat().batch(16)


if "micro_batch_size" in given:
    given["micro_batch_size"] = int(given["micro_batch_size"])
config = CSRunConfig(log_steps=1, save_checkpoints_steps=2, keep_checkpoint_max=9, **given)
CerebrasEstimator(model_fn, folder, config).train(input_fn, max_steps=6)
"""
LINE_OF_NORM = 1 + SCRIPT.splitlines().index('    hidden = nn.LayerNorm(name="norm")(hidden)')

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with options, once for each set of them; return the model_dir."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "script.py").write_text(SCRIPT)

    def trained(*options: str) -> Path:
        model_dir = folder / "-".join(options)
        if not model_dir.exists():
            words = [sys.executable, "script.py", model_dir.name, *options]
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
        return model_dir

    return trained


def contents(model_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in model_dir.rglob("*") if path.is_file()}


def test_equal_runs_leave_their_folders_alone(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the command, as JSON; and its exit codes."""
    model_dir = train("kernels=numpy")
    before = contents(model_dir)
    words = "compare", "--operators", str(model_dir)
    assert run(csrun, [*words, str(model_dir), "-o", "json"]) == 0
    told = msgspec.json.decode(capfd.readouterr().out)["operators"]
    found = msgspec.convert(told, OperatorComparison)
    assert found.is_equal
    assert (found.start, found.first_step, found.last_step) == (4, 5, 6)
    assert (found.only_first, found.only_second, found.unlike) == (0, 0, 0)
    assert found.compared > 30
    assert contents(model_dir) == before
    assert run(csrun, [*words, str(tmp_path)]) == 2


def test_a_wrong_kernel_is_found_by_name(train: Train) -> None:
    found = compare_operators(train("kernels=numpy"), train("kernels=numpy", "planted=1"))
    different = found.difference
    assert different is not None
    assert (found.start, different.step) == (0, 1)
    assert (different.layer, different.operator) == ("norm", "native_layer_norm")
    assert different.kernels == ("norm", "norm")
    assert different.line.endswith(f"script.py:{LINE_OF_NORM}")
    assert (different.value.place, different.value.differing) == ((3, 5), 1)
    assert different.value.second == pytest.approx(1.25 * different.value.first)


def test_two_commands(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    model_dir = train("kernels=numpy")
    before = contents(model_dir.parent)
    words = sys.executable, str(model_dir.parent / "script.py"), "any", "kernels=numpy"
    script = shlex.join(words)
    planted = f"{script} planted=1"
    assert run(csrun, ["compare", "--operators", "--steps", "1", script, planted]) == 1
    out = capfd.readouterr().out
    assert "step      1\n" in out
    assert "layer     norm\n" in out
    assert "layer_norm" in out
    assert contents(model_dir.parent) == before


def test_an_update_that_differs_is_found(train: Train) -> None:
    """The first update is equal for any momentum."""
    found = compare_operators(train("kernels=numpy"), train("kernels=numpy", "momentum=0.5"))
    assert found.difference is not None
    assert (found.difference.step, found.difference.operator) == (2, "update of weights")
    assert found.difference.key == "update/after/weights/first/kernel"


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (["kernels=llvm"], Tolerance(8, of_largest=True)),
        (["kernels=numpy", "micro_batch_size=4"], Tolerance(8, of_largest=True)),
        (["kernels=numpy", "precision=mixed_bfloat16"], Tolerance(4, of_largest=True)),
    ],
)
def test_forms_that_differ_in_the_last_digits(
    train: Train, options: list[str], tolerance: Tolerance
) -> None:
    first, second = train("kernels=numpy"), train(*options)
    found = compare_operators(first, second, tolerance, steps=1)
    assert found.is_equal, found.difference
    assert found.compared > 12


def test_a_run_that_cannot_run_again(train: Train, tmp_path: Path) -> None:
    model_dir = train("kernels=numpy")
    command = model_dir / "train" / "command_train.json"
    kept = command.read_bytes()
    try:
        command.write_text('{"words": ["false"], "directory": "/"}')
        with pytest.raises(UsageError, match="cannot be run again: false: exit code 1"):
            compare_operators(model_dir, model_dir)
        command.unlink()
        with pytest.raises(UsageError, match="command cannot be read"):
            compare_operators(model_dir, model_dir)
    finally:
        command.write_bytes(kept)


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        ("csrun: waiting for 14 of the 16 nodes", ["a: waiting for 14 of the 16 nodes"]),
        ("INFO:csrun:Waiting for cs2-02, held", ["a: Waiting for cs2-02, held"]),
        ("srun: job 2 queued and waiting for resources", []),
    ],
)
def test_a_wait_of_a_second_run_is_reported(line: str, waits: list[str], tmp_path: Path) -> None:
    words = ("sh", "-c", f"echo '{line}'; sleep 0.3; exit 1")
    reported: list[str] = []
    with pytest.raises(UsageError, match="exit code 1"):
        RecordedRun("a", RunCommand(words, str(tmp_path))).record(
            None, (1, 2), tmp_path / "again", report=reported.append
        )
    assert reported == waits
