"""Damaged checkpoints are refused by name, with the newest intact one as the remedy."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.records import checkpoints
from csrun.records.checkpoints import folder_files

TENSORS = {"fc/kernel": np.arange(6, dtype=np.float32), "fc/bias": np.ones(2, np.float32)}


def restore_latest(folder: Path) -> dict[str, np.ndarray]:
    target = {name: np.zeros_like(array) for name, array in TENSORS.items()}
    found = checkpoints.latest(folder)
    assert found is not None
    found.restore(target)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (100, 200):
        checkpoints.write(tmp_path, step, TENSORS, {}, 5)
    return tmp_path


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def relabel(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def manifest_of(step: int) -> bytes:
    return stored.text_of(folder_files.Manifest(step, {}, {}))


DAMAGE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "cut": (lambda tensors, _: truncate(tensors, 40), r"the file has 40 bytes, expected \d+"),
    "cut-to-nothing": (lambda tensors, _: truncate(tensors, 0), "the file has 0 bytes"),
    "longer": (lambda tensors, _: tensors.write_bytes(tensors.read_bytes() + b"x"), "bytes"),
    "bit-in-kernel": (lambda tensors, _: flip(tensors, -32), "tensor fc/kernel: checksum"),
    "bit-in-bias": (lambda tensors, _: flip(tensors, -1), "tensor fc/bias: checksum"),
    "header": (lambda tensors, _: flip(tensors, 9), "damaged"),
    "no-manifest": (lambda _, manifest: manifest.unlink(), "No such file"),
    "manifest-cut": (lambda _, manifest: truncate(manifest, 30), "damaged"),
    "manifest-type": (lambda _, m: relabel(m, "float32", "gloat32"), "its checksum"),
    "manifest-step": (lambda _, m: m.write_bytes(manifest_of(201)), "says step 201"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_refused_by_name(
    folder: Path, damage: Callable[[Path, Path], None], message: str
) -> None:
    damage(folder / "model-ckpt-200.safetensors", folder / "model-ckpt-200.json")
    with pytest.raises(CsrunError, match=message) as caught:
        restore_latest(folder)
    text = str(caught.value)
    assert text.startswith(f"{folder / 'model-ckpt-200.safetensors'} is damaged: ")
    assert f"{folder / 'model-ckpt-100.safetensors'}: give it as checkpoint_path" in text


def test_missing_tensors_are_reported_as_removed(folder: Path) -> None:
    """A running training or the user removed them: the message must not suggest removing files."""
    found = checkpoints.latest(folder)
    assert found is not None
    found.path.unlink()
    target = {name: np.zeros_like(array) for name, array in TENSORS.items()}
    for read in (lambda: checkpoints.latest(folder), lambda: found.restore(target)):
        with pytest.raises(CsrunError) as caught:
            read()
        text = str(caught.value)
        assert text.startswith(f"{found.path} no longer exists (removed by a running training?); ")
        assert f"{folder / 'model-ckpt-100.safetensors'}: give it as checkpoint_path" in text
        assert "damaged" not in text


def test_a_checkpoint_removed_during_the_search_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that keeps one checkpoint replaces it between the reads of index and files."""
    read_index = folder_files.read_index

    def read_and_be_late(model_dir: Path) -> object:
        index = read_index(model_dir)
        monkeypatch.undo()
        checkpoints.write(folder, 300, TENSORS, {}, 1)
        return index

    monkeypatch.setattr(folder_files, "read_index", read_and_be_late)
    found = checkpoints.latest(folder)
    assert found is not None
    assert found.step == 300


def test_the_offer_passes_over_other_damaged_ones(folder: Path) -> None:
    checkpoints.write(folder, 300, TENSORS, {}, 5)
    flip(folder / "model-ckpt-300.safetensors", -1)
    flip(folder / "model-ckpt-200.safetensors", -1)
    with pytest.raises(CsrunError, match=re.escape(str(folder / "model-ckpt-100.safetensors"))):
        restore_latest(folder)


def test_removing_the_damaged_one_resumes_from_the_one_before(folder: Path) -> None:
    flip(folder / "model-ckpt-200.safetensors", -1)
    for path in folder.glob("model-ckpt-200.*"):
        path.unlink()
    found = checkpoints.latest(folder)
    assert found is not None
    assert found.step == 100


def test_the_last_one_damaged_leaves_nothing_to_offer(folder: Path) -> None:
    for path in folder.glob("model-ckpt-100.*"):
        path.unlink()
    flip(folder / "model-ckpt-200.safetensors", -1)
    with pytest.raises(CsrunError, match=r"remove model-ckpt-200\.\* to restart training"):
        restore_latest(folder)


def test_a_broken_index_is_named(folder: Path) -> None:
    (folder / "checkpoint").write_text("{")
    with pytest.raises(CsrunError, match=r"checkpoint: the index is damaged.*set checkpoint_path"):
        checkpoints.latest(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../victim/precious",
        "model-ckpt-1/../../precious",
        "model-ckpt-",
        "model-ckpt-01",
        "precious",
        "model-ckpt-1\n",
        "model-ckpt-\u0663",
        "model-ckpt-" + "9" * 400,
    ],
)
def test_an_index_names_nothing_but_checkpoints(folder: Path, name: str) -> None:
    victim = folder / "victim"
    victim.mkdir()
    (victim / "precious.safetensors").touch()
    (folder / "precious.safetensors").touch()
    index = {"latest": "model-ckpt-200", "kept": [name, "model-ckpt-200"]}
    (folder / "checkpoint").write_bytes(stored.text_of(index))
    for use in (checkpoints.latest, lambda where: checkpoints.write(where, 300, TENSORS, {}, 1)):
        with pytest.raises(CsrunError, match=r"checkpoint: the index is damaged.*remove this file"):
            use(folder)
    assert (victim / "precious.safetensors").exists()
    assert (folder / "precious.safetensors").exists()


def test_removing_a_checkpoint_does_not_follow_links(folder: Path) -> None:
    """A symbolic link with the name of a checkpoint file is removed, its target is not."""
    precious = folder / "precious"
    precious.touch()
    (folder / "model-ckpt-100.json").unlink()
    (folder / "model-ckpt-100.json").symlink_to(precious)
    checkpoints.write(folder, 300, TENSORS, {}, 1)
    assert precious.exists()
    assert {path.name for path in folder.glob("model-ckpt-*")} == {
        "model-ckpt-300.safetensors",
        "model-ckpt-300.json",
    }


def test_a_checkpoint_that_cannot_be_removed_is_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "model-ckpt-100.json").unlink()
    (folder / "model-ckpt-100.json").mkdir()
    checkpoints.write(folder, 300, TENSORS, {}, 1)
    assert f"{folder / 'model-ckpt-100.json'}: cannot be removed: Is a directory" in caplog.text


def test_without_its_index_a_folder_goes_on_from_the_newest_that_is_whole(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints.write(folder, 300, TENSORS, {}, 5)
    flip(folder / "model-ckpt-300.safetensors", -1)
    (folder / "checkpoint").unlink()
    found = checkpoints.latest(folder)
    assert found is not None
    assert found.step == 200
    assert "the index checkpoint is missing: resuming from model-ckpt-200" in caplog.text
    checkpoints.write(folder, 400, TENSORS, {}, 5)
    assert checkpoints.kept_steps(folder) == (100, 200, 300, 400)


def test_without_its_index_and_a_whole_checkpoint_nothing_is_begun_anew(folder: Path) -> None:
    for step in (100, 200):
        flip(folder / f"model-ckpt-{step}.safetensors", -1)
    (folder / "checkpoint").unlink()
    with pytest.raises(CsrunError, match="none of 2 checkpoints is complete: remove model-ckpt"):
        checkpoints.latest(folder)


def test_without_index_and_manifest_only_a_first_checkpoint_is_passed_over(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 0, TENSORS, {}, 5)
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "model-ckpt-0.json").unlink()
    assert checkpoints.latest(tmp_path) is None
    (tmp_path / "model-ckpt-0.safetensors").rename(tmp_path / "model-ckpt-100.safetensors")
    with pytest.raises(CsrunError, match="none of 1 checkpoints is complete"):
        checkpoints.latest(tmp_path)


def test_a_kept_name_without_files_is_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in folder.glob("model-ckpt-200.*"):
        path.unlink()
    checkpoints.latest(folder)
    assert f"{folder}: checkpoint model-ckpt-200 is in the index but missing on disk" in caplog.text


def test_every_flipped_bit_of_an_index_is_noticed_or_harmless(folder: Path) -> None:
    path = folder / "checkpoint"
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = checkpoints.latest(folder)
        except CsrunError:
            continue
        assert found is None or found.step in (100, 200)


def test_every_flipped_bit_of_a_tensors_file_is_noticed(folder: Path) -> None:
    path = folder / "model-ckpt-200.safetensors"
    good, refusals = path.read_bytes(), set()
    for bit in range(len(good) * 8):
        content = bytearray(good)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            target = restore_latest(folder)
        except CsrunError as error:
            refusals.add(str(error).partition(": ")[0])
        else:  # only where the format leaves a choice, as in the padding of the header
            assert all(np.array_equal(target[name], TENSORS[name]) for name in TENSORS)
    assert refusals == {f"{path} is damaged"}


def test_every_changed_byte_of_a_manifest_is_noticed_or_harmless(folder: Path) -> None:
    path = folder / "model-ckpt-200.json"
    good = path.read_bytes()
    for offset in range(len(good)):
        for value in (0x00, 0x31, 0x7D, 0xFF):
            path.write_bytes(good[:offset] + bytes((value,)) + good[offset + 1 :])
            try:
                target = restore_latest(folder)
            except CsrunError:
                continue
            assert json.loads(path.read_bytes())["step"] == 200
            assert all(np.array_equal(target[name], TENSORS[name]) for name in TENSORS)
