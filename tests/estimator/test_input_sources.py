"""Training from files and other libraries' data sets: the weights of training from arrays."""

import logging
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun import nn
from csrun.data import Dataset, formats
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

random = np.random.default_rng(4)
FEATURES = random.standard_normal((48, 6)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int32)
STEPS, HALF = 12, 5
FIRST, REST = slice(20), slice(20, 48)


def of_arrays(folder: Path) -> Any:
    return Dataset.from_arrays(FEATURES, LABELS).repeat().batch(8)


def of_npz(folder: Path) -> Any:
    for name, rows in {"a.npz": FIRST, "b.npz": REST}.items():
        np.savez(folder / name, x=FEATURES[rows], y=LABELS[rows])
    return Dataset.from_files(folder / "*.npz").repeat().batch(8)


def of_hdf5(folder: Path) -> Any:
    with pytest.importorskip("h5py").File(folder / "x.h5", "w") as file:
        file["x"], file["y"] = FEATURES, LABELS
    return Dataset.from_files(folder / "x.h5").repeat().batch(8)


def of_csv(folder: Path) -> Any:
    rows = np.column_stack([FEATURES.astype(str), LABELS.astype(str)]).tolist()
    (folder / "x.csv").write_text("\n".join(map(",".join, rows)))
    form = formats.Csv({range(6): "float32", 6: "int32"}, header=False)
    return Dataset.from_files(folder / "x.csv", form).repeat().batch(8)


def of_grain(folder: Path) -> Any:
    grain = pytest.importorskip("grain")
    samples = grain.MapDataset.range(48).map(lambda k: (FEATURES[k], LABELS[k]))
    return samples.repeat().batch(8)


def of_torch(folder: Path) -> Any:
    data = pytest.importorskip("torch").utils.data
    samples = [{"labels": y, "features": x} for x, y in zip(FEATURES, LABELS, strict=True)]
    return data.DataLoader(samples * 3, batch_size=8)


def of_shuffled_torch(folder: Path) -> Any:
    torch = pytest.importorskip("torch")
    torch.seed()  # as in a process of its own
    samples = list(zip(FEATURES, LABELS, strict=True))
    return Dataset.from_batches(torch.utils.data.DataLoader(samples, 8, shuffle=True)).repeat()


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> CSEstimatorSpec:
    logits = nn.Dense(2, name="out")(nn.Dense(5, activation="tanh", name="hidden")(features))
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.Adam(0.02).minimize(loss))


def trained(make: Callable[[Path], Any], folder: Path) -> dict[str, np.ndarray]:
    """Weights after a training that was interrupted and resumed."""
    folder.mkdir()
    for steps in (HALF, STEPS):
        estimator = CerebrasEstimator(model_fn, folder / "model_dir", CSRunConfig(), {})
        estimator.train(lambda params: make(folder), max_steps=steps)
    return load_file(folder / "model_dir" / f"model-ckpt-{STEPS}.safetensors")


@pytest.mark.parametrize("make", [of_npz, of_hdf5, of_csv, of_grain, of_torch])
def test_the_weights_are_those_of_arrays(
    make: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with chdir(tmp_path):
        expected = trained(of_arrays, tmp_path / "arrays")
        with caplog.at_level(logging.WARNING, "csrun"):
            weights = trained(make, tmp_path / "others")
    assert weights.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(weights[name], values, err_msg=name)
    replays = "dropped" in caplog.text
    assert replays == (make is of_csv)


def test_an_unseeded_loader_gives_the_same_weights_again(tmp_path: Path) -> None:
    with chdir(tmp_path):
        first, second, in_order = (
            trained(make, tmp_path / name)
            for name, make in {
                "a": of_shuffled_torch,
                "b": of_shuffled_torch,
                "c": of_arrays,
            }.items()
        )
    assert any((first[name] != in_order[name]).any() for name in first)
    for name, expected in first.items():
        np.testing.assert_array_equal(second[name], expected)
