"""Comparison of the model_dirs of two runs."""

import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from csrun.base.errors import UsageError
from csrun.records import checkpoints, model_dir
from csrun.records.events import EventWriter
from csrun.records.run_comparison import compare_losses, compare_runs

PARAMS = {"model": {"sizes": [5, 5]}, "runconfig": {"seed": 1, "model_dir": "a"}}


def make(folder: Path, losses: dict[int, float], seed: int = 1) -> Path:
    folder.mkdir()
    writer = EventWriter(folder)
    for step, loss in losses.items():
        writer.scalars({"loss": loss, "lr": 0.1}, step)
    writer.close()
    params = {**PARAMS, "runconfig": {"seed": seed, "model_dir": str(folder)}}
    model_dir.write_params(folder, "train", params)
    identity = {"seed": str(seed), "numpy": "2.4.0"}
    checkpoints.write(folder, max(losses), {"w": np.ones(2, np.float32)}, identity, 5)
    return folder


def test_equal_runs(tmp_path: Path) -> None:
    losses = {1: 2.0, 100: 0.5}
    found = compare_runs(make(tmp_path / "a", losses), make(tmp_path / "b", losses))
    assert found.is_equal
    assert (found.losses.common, found.losses.diverged) == (2, None)


def test_the_first_step_that_differs_and_why(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {1: 2.0, 100: 1.0, 200: 0.5, 300: 0.25})
    next_up = float(np.nextafter(np.float32(1.0), np.float32(2.0)))
    second = make(tmp_path / "b", {1: 2.0, 100: next_up, 200: 1.0, 400: 0.25}, seed=2)
    found = compare_runs(first, second)
    assert not found.is_equal
    assert [(e.key, e.first, e.second) for e in found.parameters] == [
        ("train: runconfig.seed", "1", "2")
    ]
    assert [(e.key, e.first, e.second) for e in found.identity] == [("seed", "1", "2")]
    losses = found.losses
    assert (losses.common, losses.differing, losses.only_first, losses.only_second) == (3, 2, 1, 1)
    assert losses.diverged is not None
    assert (losses.diverged.step, losses.diverged.second) == (100, next_up)
    assert losses.largest is not None
    assert (losses.largest.step, losses.largest.relative) == (200, 0.5)


def compiled(
    folder: Path, checksum: str, run_mode: str, written_s: int, manifest_text: str = "{}"
) -> Path:
    """Compile directory with this modification time."""
    made = folder / f"tfcs_{checksum}"
    made.mkdir()
    (made / model_dir.COMPILE_PLAN).write_text(f'{{"run_mode": "{run_mode}"}}')
    manifest = made / model_dir.COMPILE_MANIFEST
    manifest.write_text(manifest_text)
    os.utime(manifest, (written_s, written_s))
    return made


def test_a_mode_that_one_run_alone_was_run_in_is_no_difference(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", {1: 2.0}), make(tmp_path / "b", {1: 2.0})
    model_dir.write_params(second, "eval", PARAMS)
    compiled(first, "1", "train", 1)
    compiled(second, "1", "train", 1)
    compiled(second, "2", "eval", 2)
    found = compare_runs(first, second)
    assert (found.only_first_modes, found.only_second_modes) == ((), ("eval",))
    assert found.equal_parameters == {
        "train: model.sizes[0]": "5", "train: model.sizes[1]": "5", "train: runconfig.seed": "1"
    }  # fmt: skip
    assert found.equal_identity == {"seed": "1", "numpy": "2.4.0", "compile": "tfcs_1"}
    assert found.is_equal


def test_the_cpu_of_machine_code_is_compared_only_with_machine_code(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", {1: 2.0}), make(tmp_path / "b", {1: 2.0})
    third = make(tmp_path / "c", {1: 2.0})
    compiled(first, "1", "train", 1, '{"machine": {"target": "skylake +avx2"}}')
    compiled(second, "1", "train", 1)
    compiled(third, "1", "train", 1, '{"machine": {"target": "rocketlake +avx2"}}')
    assert compare_runs(first, second).identity == ()
    (cpu,) = compare_runs(first, third).identity
    assert (cpu.key, cpu.first, cpu.second) == ("CPU", "skylake", "rocketlake")


def test_the_newest_compile_is_that_of_a_training_if_there_is_one(tmp_path: Path) -> None:
    assert model_dir.newest_compile(tmp_path) is None
    evaluation = compiled(tmp_path, "e", "eval", 3)
    assert model_dir.newest_compile(tmp_path) == evaluation
    compiled(tmp_path, "old", "train", 1)
    newest = compiled(tmp_path, "new", "train", 2)
    assert model_dir.newest_compile(tmp_path) == newest


def test_losses_that_are_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    assert compare_losses({1: nan, 2: inf}, {1: nan, 2: inf}).differing == 0
    found = compare_losses({1: nan}, {1: 1.0})
    assert found.diverged is not None
    assert found.diverged.step == 1


def test_a_step_that_ran_again_counts_once(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {1: 2.0, 100: 1.0})
    second = make(tmp_path / "b", {1: 2.0, 100: 9.0})
    path = next(second.glob("events*"))
    path.rename(second / "events.out.tfevents.1000.host")
    writer = EventWriter(second)
    writer.scalars({"loss": 1.0}, 100)
    writer.close()
    assert compare_runs(first, second).is_equal


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", {1: 2.0}), make(tmp_path / "b", {2: 2.0})
    with pytest.raises(UsageError, match="no step was logged by both"):
        compare_runs(first, second)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty: no losses"):
        compare_runs(first, tmp_path / "empty")
    with pytest.raises(UsageError, match="no such folder"):
        compare_runs(first, tmp_path / "none")


def test_a_folder_without_checkpoints_and_params(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {1: 2.0})
    second = make(tmp_path / "b", {1: 2.0})
    for path in (*second.glob("model-ckpt-*"), second / "checkpoint"):
        path.unlink()
    found = compare_runs(first, second)
    assert found.parameters == ()
    assert (found.identity, found.without_checkpoint) == ((), (str(second),))
    assert found.is_equal
    assert yaml.safe_load((first / "train" / "params_train.yaml").read_text())["model"]
