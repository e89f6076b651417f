"""A resumed training restores all optimizer state, so that bits are equal."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")

OPTIMIZERS = {
    "lamb": nn.Lamb(0.02, clip_norm=0.5),
    "adagrad": nn.Adagrad(0.02, lr_decay=0.1, initial_accumulator=0.1),
    "rmsprop": nn.RMSProp(0.02, momentum=0.9, centered=True),
    "adam": nn.Adam(0.02, epsilon_hat=True),
}
SLOTS = {"lamb": 2, "adagrad": 1, "rmsprop": 3, "adam": 2}


def train_input(params):
    random = np.random.default_rng(4)
    features = random.standard_normal((40, 6)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    return Dataset.from_arrays(features, labels).repeat().batch(8, drop_remainder=True)


def model_fn(features, labels, mode, params):
    logits = nn.Dense(2, name="out")(nn.Dense(5, activation="tanh", name="hidden")(features))
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=params["optimizer"].minimize(loss))


def train(folder, optimizer, max_steps):
    """Train; return the bytes of the last checkpoint."""
    config = CSRunConfig(save_checkpoints_steps=100, log_steps=100)
    estimator = CerebrasEstimator(model_fn, folder, config, {"optimizer": optimizer})
    estimator.train(train_input, max_steps=max_steps)
    return (folder / f"model-ckpt-{max_steps}.safetensors").read_bytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_training_has_the_bits_of_one_that_went_on(tmp_path, name):
    expected = train(tmp_path / "whole", OPTIMIZERS[name], 6)
    train(tmp_path / "parts", OPTIMIZERS[name], 3)
    assert train(tmp_path / "parts", OPTIMIZERS[name], 6) == expected
    kept = load_file(tmp_path / "parts" / "model-ckpt-6.safetensors")
    assert sum(key.endswith("/out/kernel") for key in kept) == SLOTS[name]


def test_the_first_sum_of_squares_is_the_one_asked_for(tmp_path):
    train(tmp_path, OPTIMIZERS["adagrad"], 1)
    first = load_file(tmp_path / "model-ckpt-0.safetensors")
    assert (first["square_sum/out/kernel"] == np.float32(0.1)).all()
