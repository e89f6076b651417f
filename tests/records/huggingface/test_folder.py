"""Folder of a saved model: incomplete ones are refused, and files have at most the given size."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from csrun.base.errors import CsrunError, UsageError
from csrun.records.huggingface import open_folder, size_in_bytes, write_folder

TENSORS = {f"t{n}": np.full((10, 3), n, np.float32) for n in range(1, 6)}


def saved(path: Path, most: int = 300) -> Path:
    write_folder(path, {"model_type": "some"}, TENSORS, most)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    names = write_folder(tmp_path, {"model_type": "some"}, TENSORS, 300)
    assert names == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    held = [list(load_file(tmp_path / name)) for name in names]
    assert held == [["t1", "t2"], ["t3", "t4"], ["t5"]]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in TENSORS.values())
    folder = open_folder(tmp_path)
    assert folder.config == {"model_type": "some"}
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(folder.tensors[name].read().raw, array)


def test_a_model_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"already has a model \(model-00001-of"):
        saved(saved(tmp_path))


def test_existing_models_and_files_are_not_overwritten(tmp_path: Path) -> None:
    """A folder of an older layout has tensors in files of other names."""
    config, file = tmp_path / "config.json", tmp_path / "file"
    config.write_text("theirs")
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"already has a model \(config.json\)"):
        write_folder(tmp_path, {"model_type": "some"}, TENSORS, 1 << 30)
    with pytest.raises(CsrunError, match="file: cannot be written: File exists"):
        write_folder(file, {"model_type": "some"}, TENSORS, 1 << 30)
    assert (config.read_text(), file.read_text()) == ("theirs", "mine")


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors.index.json"])
def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path, gone: str) -> None:
    (saved(tmp_path) / gone).unlink()
    with pytest.raises(UsageError, match=f"no {gone}"):
        open_folder(tmp_path)


def test_shards_that_are_gone_are_named_at_once(tmp_path: Path) -> None:
    for number in (1, 3):
        (saved(tmp_path / f"{number}") / "x").touch()
    for number in (1, 2):
        (tmp_path / "1" / f"model-0000{number}-of-00003.safetensors").unlink()
    with pytest.raises(
        UsageError, match=r"model-00001-of-00003.safetensors, model-00002-of-00003.safetensors$"
    ):
        open_folder(tmp_path / "1")


def damage_head(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def lose(path: Path) -> None:
    save_file({"another": np.zeros(3, np.float32)}, path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_head, "model-00002-of-00003.safetensors: not a safetensors file"),
        (truncate, "model-00002-of-00003.safetensors: not a safetensors file"),
        (lose, "index.json: tensors missing from its files: t"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path: Path, damage: object, said: str) -> None:
    damage(saved(tmp_path) / "model-00002-of-00003.safetensors")  # type: ignore[operator]
    with pytest.raises(CsrunError, match=said):
        open_folder(tmp_path)


def test_an_index_stays_in_its_folder(tmp_path: Path) -> None:
    index = saved(tmp_path) / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"t1": "../../etc/passwd"}}')
    with pytest.raises(CsrunError, match="names a file outside its folder"):
        open_folder(tmp_path)
    index.write_text('{"weight_map": ')
    with pytest.raises(CsrunError, match=r"index.json: "):
        open_folder(tmp_path)


def test_sizes_are_those_of_transformers() -> None:
    assert [size_in_bytes(text) for text in ("5GB", "200MB", "1 kb", "77")] == [
        5_000_000_000,
        200_000_000,
        1000,
        77,
    ]
    for text in ("5GiB", "0", "-1", "much"):
        with pytest.raises(UsageError, match="max_shard_size: must be a size like 500MB"):
            size_in_bytes(text)
