"""Checkpoints: written ones are readable, also by other tools; mismatched ones are refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun.base.errors import CsrunError, UsageError
from csrun.records import checkpoints

IDENTITY = {"seed": "1", "precision": "float32"}
Arrays = dict[str, np.ndarray]


def state(value: float = 0.0) -> Arrays:
    return {
        "fc_0/kernel": np.arange(12, dtype=np.float32).reshape(3, 4) + np.float32(value),
        "fc_0/bias": np.full(4, value, np.float32),
        "momentum/fc_0/kernel": np.full((3, 4), -value, np.float32),
        "momentum/fc_0/bias": np.full(4, value / 2, np.float32),
    }


def empty(of: Arrays) -> Arrays:
    return {name: np.full_like(array, 77) for name, array in of.items()}


def write(folder: Path, step: int, value: float | None = None, keep: int = 5) -> Path:
    tensors = state(step if value is None else value)
    return checkpoints.write(folder, step, tensors, IDENTITY, keep)


def restored(folder: Path) -> Arrays:
    found, target = checkpoints.latest(folder), empty(state())
    assert found is not None
    found.restore(target)
    return target


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoints.latest(tmp_path) is None


def test_what_is_written_is_restored(tmp_path: Path) -> None:
    write(tmp_path, 100)
    write(tmp_path, 200)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert (found.step, found.path.name) == (200, "model-ckpt-200.safetensors")
    assert found.manifest.identity == IDENTITY
    assert same(restored(tmp_path), state(200))


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    tensors = {"a": np.array([[1, 2]], np.float32), "b": np.array(3, np.int64)}
    content = checkpoints.write(tmp_path, 1, tensors, {}, 5).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    assert (8 + length) % 8 == 0
    assert json.loads(content[8 : 8 + length]) == {
        "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]},
    }
    assert content[8 + length :] == struct.pack("<ffq", 1, 2, 3)


def test_the_library_reads_the_file(tmp_path: Path) -> None:
    tensors = {**state(3), "double": np.array([0.1]), "none": np.empty((0, 2), np.float32)}
    assert same(load_file(checkpoints.write(tmp_path, 7, tensors, {}, 5)), tensors)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_are_read_by_the_library_and_here(tmp_path: Path, dtype: str) -> None:
    values = np.array([0, 7, np.iinfo(dtype).max], dtype)
    file = checkpoints.write(tmp_path, 1, {"codes": values}, IDENTITY, 5)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    for read in (load_file(file)["codes"], found.tensor("codes")):
        assert read.dtype == dtype
        assert read.tolist() == values.tolist()


def test_a_tensor_longer_than_a_chunk(tmp_path: Path) -> None:
    tensors = {"big": np.arange(5_000_000, dtype=np.float32)}
    checkpoints.write(tmp_path, 1, tensors, {}, 5)
    target = empty(tensors)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    found.restore(target)
    assert same(target, tensors)


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = write(tmp_path / "a", 5), write(tmp_path / "b", 5)
    assert a.read_bytes() == b.read_bytes()
    assert a.with_suffix(".json").read_bytes() == b.with_suffix(".json").read_bytes()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        write(tmp_path, step, keep=2)
    names = {f"model-ckpt-{step}.{kind}" for step in (20, 30) for kind in ("json", "safetensors")}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", *names}
    index = json.loads((tmp_path / "checkpoint").read_text())
    del index["crc32"]
    assert index == {"latest": "model-ckpt-30", "kept": ["model-ckpt-20", "model-ckpt-30"]}


def test_a_step_can_be_written_again(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    write(tmp_path, 10, value=5)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.step == 10
    assert same(restored(tmp_path), state(5))


def test_a_checkpoint_is_opened_by_any_of_its_names(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    for name in ("model-ckpt-10", "model-ckpt-10.safetensors", "model-ckpt-10.json"):
        assert checkpoints.open_checkpoint(tmp_path / name).step == 10


def test_a_folder_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 20)
    assert checkpoints.open_checkpoint(tmp_path).step == 20


@pytest.mark.parametrize("name", ["model-ckpt-15", "model-ckpt-15.json", "checkpoint"])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, name: str
) -> None:
    for step in (5, 10):
        write(tmp_path, step)
    with pytest.raises(UsageError) as caught:
        checkpoints.open_checkpoint(tmp_path / name)
    there = f"{tmp_path} has model-ckpt-10, model-ckpt-5"
    assert str(caught.value) == f"{tmp_path / name}: no checkpoint; {there}"


def test_of_many_checkpoints_the_newest_are_named(tmp_path: Path) -> None:
    for step in range(10):
        write(tmp_path, step, keep=10)
    with pytest.raises(UsageError, match=r"has model-ckpt-9, .*, model-ckpt-2 and 2 older ones$"):
        checkpoints.open_checkpoint(tmp_path / "model-ckpt-10")


@pytest.mark.parametrize("name", ["", "nowhere", "nowhere/model-ckpt-1"])
def test_where_there_is_no_checkpoint_none_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r": no checkpoint; .* has none: give a model_dir"):
        checkpoints.open_checkpoint(tmp_path / name)


def test_an_evaluation_needs_no_optimizer_state(tmp_path: Path) -> None:
    write(tmp_path, 10)
    weights = {name: a for name, a in state(10).items() if not name.startswith("momentum")}
    target = empty(weights)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    found.restore(target)
    assert same(target, weights)


def test_an_evaluation_needs_none_of_an_optimizer_in_the_step(
    tmp_path: Path,
) -> None:
    weights = {"optimizers/kernel": np.ones(3), "fc/bias": np.ones(2)}
    own = {"optimizer/iteration": np.ones(()), "optimizer/fc_bias_momentum": np.ones(2)}
    checkpoints.write(tmp_path, 1, weights | own, {"optimizer_state": "optimizer/"}, 1)
    found = checkpoints.open_checkpoint(tmp_path / "model-ckpt-1")
    found.restore(target := empty(weights))
    assert same(target, weights)
    assert set(found.weights) == set(weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc_1/bias": np.zeros(2)}, "tensor fc_1/bias: not in the checkpoint"),
        ({"fc_0/bias": None, "momentum/fc_0/bias": None}, "tensor fc_0/bias: not in the model"),
        ({"momentum/fc_0/bias": None}, "tensor momentum/fc_0/bias: not in the model"),
        (
            {"fc_0/kernel": np.zeros((3, 5), np.float32)},
            r"fc_0/kernel: the checkpoint has float32\[3, 4\], the model float32\[3, 5\]",
        ),
        ({"fc_0/bias": np.zeros(4)}, r"the checkpoint has float32\[4\], the model float64\[4\]"),
    ],
)
def test_another_model_is_refused_by_tensor(
    tmp_path: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    write(tmp_path, 10)
    changed = {name: a for name, a in {**state(), **change}.items() if a is not None}
    before = {name: array.copy() for name, array in changed.items()}
    found = checkpoints.latest(tmp_path)
    assert found is not None
    with pytest.raises(CsrunError, match=message) as caught:
        found.restore(changed)
    assert "does not fit the model" in str(caught.value)
    assert same(changed, before)
