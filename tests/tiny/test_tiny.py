"""The whole chain in seconds: trace, compile, train, checkpoint, resume, evaluate."""

import numpy as np
import pytest

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

pytestmark = pytest.mark.usefixtures("own_folder")

CLASSES, PER_CLASS = 4, 64


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around the corners of a square, which are easy to classify."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    centres = np.array([[-2, -2], [-2, 2], [2, -2], [2, 2]])
    points = centres[labels] + 0.3 * random.standard_normal((len(labels), 2))
    return points.astype(np.float32), labels


def model_fn(features, labels, mode, params):
    hidden = nn.Dense(16, activation="relu")(features)
    logits = nn.Dense(CLASSES)(hidden)
    loss = nn.softmax_cross_entropy(logits, labels)
    train_op = nn.SGD(0.1, momentum=0.9).minimize(loss) if mode == nn.TRAIN else None
    return CSEstimatorSpec(mode, loss, train_op, (metrics, [labels, nn.argmax(logits)]))


def metrics(labels, predictions):
    return {"accuracy": nn.metrics.accuracy(labels, predictions)}


def train_input_fn(params):
    return Dataset.from_arrays(*blobs(1)).shuffle(seed=1).repeat().batch(32)


def eval_input_fn(params):
    return Dataset.from_arrays(*blobs(2)).batch(50)  # the last batch has 6 rows


def test_it_learns_resumes_and_evaluates(tmp_path):
    estimator = CerebrasEstimator(model_fn, tmp_path, CSRunConfig(save_checkpoints_steps=25))
    first = estimator.train(train_input_fn, max_steps=30)
    assert first["global_step"] == 30
    assert estimator.train(train_input_fn, max_steps=100)["loss"] < 0.01
    results = estimator.evaluate(eval_input_fn)
    assert results["global_step"] == 100
    assert results["accuracy"] == 1.0
    assert results["loss"] < 0.01
    assert estimator.train(train_input_fn, max_steps=100) == {"global_step": 100.0}


def test_a_resumed_run_is_the_run(tmp_path):
    """30 steps and then 70 have the same bytes as 100 at once."""
    at_once, in_two = (
        CerebrasEstimator(model_fn, tmp_path / name, CSRunConfig()) for name in ("one", "two")
    )
    at_once.train(train_input_fn, max_steps=100)
    in_two.train(train_input_fn, steps=30)
    in_two.train(train_input_fn, steps=70)
    name = "model-ckpt-100.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
