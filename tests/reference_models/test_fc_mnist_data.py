"""fc_mnist's input: shipped digits, preprocessing, and refused files."""

import gzip
import importlib.util
import shutil
import struct
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from csrun.data import ArraySpec, DataError
from csrun.params import load

TRAIN, TEST = 1437, 360


@pytest.fixture
def data(fc_mnist: Path) -> ModuleType:
    import data

    return data


@pytest.fixture
def params(fc_mnist: Path) -> msgspec.Struct:
    from params import Params

    return load(Params, fc_mnist / "configs" / "params.yaml")


def with_train(params: msgspec.Struct, **values: object) -> msgspec.Struct:
    train = msgspec.structs.replace(params.train_input, **values)
    return msgspec.structs.replace(params, train_input=train)


def test_the_digits_are_those_of_scikit_learn(fc_mnist: Path, data: ModuleType) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    parts = [data.read_digits("data", prefix) for prefix in ("train", "t10k")]
    assert [len(images) for images, _ in parts] == [TRAIN, TEST]
    images = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    # each source pixel is the centre of a block of three, inside a frame of two
    centres = images[:, 3:26:3, 3:26:3].astype(np.float64) * 16 / 255
    got = sorted((label, *image.ravel()) for label, image in zip(labels, centres, strict=True))
    digits = datasets.load_digits()
    expected = sorted(
        (d, *image.ravel()) for d, image in zip(digits.target, digits.images, strict=True)
    )
    assert np.allclose(got, expected, atol=16 / 255)


def test_the_digits_can_be_made_again(fc_mnist: Path, tmp_path: Path, data: ModuleType) -> None:
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("m", fc_mnist / "data" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FOLDER = tmp_path
    module.main()
    for made in tmp_path.iterdir():
        shipped = fc_mnist / "data" / made.name
        assert gzip.decompress(made.read_bytes()) == gzip.decompress(shipped.read_bytes())


def test_every_digit_occurs_in_both_parts(data: ModuleType) -> None:
    for prefix in ("train", "t10k"):
        _, labels = data.read_digits("data", prefix)
        assert np.bincount(labels).min() > len(labels) / 10 * 0.7


def test_training_batches(data: ModuleType, params: msgspec.Struct) -> None:
    made = data.train_input_fn(params)
    spec = ArraySpec((128, 28, 28), "float32"), ArraySpec((128,), "int32")
    assert made.element_spec() == spec
    assert made.cardinality is None
    assert made.indexable
    images, _ = next(made.batches())
    assert images.min() == 0
    assert images.max() == 1


def test_one_pass_holds_every_image_once(data: ModuleType, params: msgspec.Struct) -> None:
    made = data.train_input_fn(with_train(params, shift_images=False, batch_size=TRAIN))
    images, _ = next(made.batches())
    expected, _ = data.read_digits("data", "train")
    sums = images.sum(axis=(1, 2), dtype=np.float64)
    assert np.allclose(np.sort(sums), np.sort(expected.sum(axis=(1, 2)) / 255), rtol=1e-5)


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
def test_shifts_move_by_one_pixel(data: ModuleType, shift: tuple[int, int]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28), np.uint8)
    assert shift in set(map(tuple, data.SHIFTS.tolist()))
    down, right = shift
    found = data.shifts_of(images)[:, 1 - down, 1 - right]
    assert np.array_equal(found, np.roll(images, shift, axis=(1, 2)))


def test_an_epoch_has_each_image_in_each_place(data: ModuleType, params: msgspec.Struct) -> None:
    made = data.train_input_fn(with_train(params, shift_images=True, batch_size=5 * TRAIN))
    images, _ = next(made.batches())
    first, _ = data.read_digits("data", "train")
    moved = [np.roll(first, shift, axis=(1, 2)) for shift in data.SHIFTS]
    expected = np.concatenate(moved).reshape(5 * TRAIN, -1)
    pixels = np.rint(images * 255).astype(np.uint8).reshape(5 * TRAIN, -1)
    assert sorted(map(bytes, pixels)) == sorted(map(bytes, expected))


def test_test_images_come_once_and_in_order(data: ModuleType, params: msgspec.Struct) -> None:
    batches = list(data.eval_input_fn(params))
    assert [len(labels) for _, labels in batches] == [128, 128, 104]
    images, labels = data.read_digits("data", "t10k")
    assert np.array_equal(np.concatenate([y for _, y in batches]), labels)
    scaled = np.concatenate([x for x, _ in batches])
    assert np.allclose(scaled, images / 255, rtol=1e-6)


def idx_bytes(*shape: int) -> bytes:
    head = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
    return head + bytes(int(np.prod(shape)))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((3, 32, 32), (3,), r"must be 28 by 28 pixels, got shape \[3, 32, 32\]"),
        ((3, 784), (3,), "must be 28 by 28"),
        ((3, 28, 28), (4,), r"3 images, but labels of shape \[4\]"),
        ((3, 28, 28), (3, 1), r"labels of shape \[3, 1\]"),
    ],
)
def test_other_images_are_refused(
    data: ModuleType, tmp_path: Path, images: tuple[int, ...], labels: tuple[int, ...], message: str
) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(*images))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(*labels))
    with pytest.raises(DataError, match=message):
        data.read_digits(str(tmp_path), "train")


def test_a_folder_without_the_files_is_named(data: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}: neither train-images-idx3-ubyte nor"):
        data.read_digits(str(tmp_path), "train")


def test_a_relative_folder_is_first_looked_for_where_the_command_runs(
    fc_mnist: Path, data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert data.find_folder("data") == fc_mnist / "data"
    shutil.copytree(fc_mnist / "data", tmp_path / "data")
    assert data.find_folder("data") == Path("data")


def test_the_shipped_params_are_those_of_the_main_job(params: msgspec.Struct) -> None:
    assert params.model.hidden_sizes == (50,) * 10
    assert params.train_input.batch_size == 128
    assert params.optimizer.momentum == 0.9
