"""performance.json, params yaml, model_dir."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from csrun.base.errors import UsageError
from csrun.records import model_dir, performance
from csrun.records.ledger import LedgerRow


def test_performance_has_the_keys_of_the_original(tmp_path: Path) -> None:
    fed = performance.Input("bound", 0.5, 2, 5, "map load")
    spent = (LedgerRow("input", "streamers", 32.0, 0.25, 4 / 3),)
    record = performance.Performance(1.5, 2e5, 0.25, 1000.0, True, 128_000, 128.0, fed, spent)
    path = performance.write(tmp_path, record)
    assert path == tmp_path / "performance" / "performance.json"
    assert json.loads(path.read_text()) == {
        "compile_time": 1.5,
        "est_samples_per_sec": 2e5,
        "programming_time": 0.25,
        "samples_per_sec": 1000.0,
        "suspected_input_bottleneck": True,
        "total_samples": 128_000,
        "total_time": 128.0,
        "step_time": 0.0,
        "estimated_step_time": None,
        "input": {
            "verdict": "bound",
            "wait_share": 0.5,
            "streamers": 2,
            "streamers_needed": 5,
            "slowest_stage": "map load",
        },
        "ledger": [
            {
                "row": "input",
                "whose": "streamers",
                "seconds": 32.0,
                "share": 0.25,
                "at_most": 4 / 3,
            }
        ],
        "num_csx": 1,
        "synchronizations": {},
        "recorded_steps": {},
    }


class Section(msgspec.Struct):
    sizes: tuple[int, ...] = (50, 50)
    folder: Path = Path("data")


class Params(msgspec.Struct):
    model: Section
    seed: int = 1


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_params_are_written_with_their_defaults(tmp_path: Path, mode: str) -> None:
    path = model_dir.write_params(tmp_path, mode, Params(Section()))
    assert path == tmp_path / mode / f"params_{mode}.yaml"
    expected = {"model": {"sizes": [50, 50], "folder": "data"}, "seed": 1}
    assert yaml.safe_load(path.read_text()) == expected
    assert path.read_text().startswith("model:")  # in the order of the params file


def test_params_may_be_a_plain_mapping(tmp_path: Path) -> None:
    path = model_dir.write_params(tmp_path, "train", {"b": {"c": [1, 2.5, None]}, "a": True})
    assert yaml.safe_load(path.read_text()) == {"b": {"c": [1, 2.5, None]}, "a": True}


def test_a_model_dir_is_made_and_left_empty(tmp_path: Path) -> None:
    model_dir.prepare(tmp_path / "a" / "b")
    model_dir.prepare(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_model_dir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"file/x: cannot be written: Not a directory.*choose another model_dir"
    ):
        model_dir.prepare(tmp_path / "file" / "x")
    with pytest.raises(UsageError, match="file: is not a folder; choose another model_dir"):
        model_dir.prepare(tmp_path / "file")


def test_a_model_dir_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(UsageError, match="/proc/self: cannot be written"):
        model_dir.prepare(Path("/proc/self"))
