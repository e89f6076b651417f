"""Evaluation of losses that sum means over labels of different kinds, against PyTorch."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the losses")
pytestmark = pytest.mark.usefixtures("own_folder")

SAMPLES, T, D, V, BATCH = 22, 5, 4, 7, 8
IGNORED, OTHER = -100, 3


def arrays():
    """Tokens, more of them masked in later samples; the last batch has six samples."""
    random = np.random.default_rng(3)
    tokens = random.integers(0, V, (SAMPLES, T)).astype(np.int32)
    tokens[random.random((SAMPLES, T)) < np.linspace(0, 0.9, SAMPLES)[:, None]] = IGNORED
    classes = random.integers(0, V, SAMPLES).astype(np.int32)
    classes[: SAMPLES // 3] = OTHER
    return random.standard_normal((SAMPLES, T, D)), tokens, classes


def several(of, tokens, classes, square, first, second):
    """Weighted sum of losses over both kinds of labels and a mean over samples."""
    both = of(first, tokens, IGNORED) * 2.0 - of(second, classes, OTHER)
    return both / 4.0 + 0.5 * of(first * 0.3, tokens, IGNORED) + square


def kinds_that_multiply(of, tokens, classes, square, first, second):
    """Product of losses, which is averaged over batches."""
    return of(first, tokens, IGNORED) * of(second, classes, OTHER)


def ours(logits, labels, ignored):
    return nn.softmax_cross_entropy(logits, labels, ignore_index=ignored)


def model_of(loss):
    def model_fn(features, labels, mode, params):
        tokens, classes = labels
        first = nn.Dense(V, name="first")(features)
        second = nn.Dense(V, name="second")(features[:, 0])
        square = nn.mean(features * features, (0, 1, 2))
        found = loss(ours, tokens, classes, square, first, second)
        return CSEstimatorSpec(mode, loss=found, train_op=nn.SGD(0.1).minimize(found))

    return model_fn


def evaluated(loss, folder, minibatches=1):
    """Loss of an evaluation after one step, and the weights."""
    config = CSRunConfig(precision="float64", minibatches_in_flight=minibatches)
    estimator = CerebrasEstimator(model_of(loss), folder, config, {})

    def input_fn(params):
        batches = Dataset.from_arrays(*arrays()).batch(BATCH)
        return batches.map(lambda x, tokens, classes: (x, (tokens, classes)))

    estimator.train(input_fn, max_steps=1)
    return estimator.evaluate(input_fn)["loss"], load_file(folder / "model-ckpt-1.safetensors")


def theirs(loss, weights, places):
    """PyTorch's loss of the samples at these indices."""
    x, tokens, classes = (torch.from_numpy(array[places]) for array in arrays())

    def of(logits, labels, ignored):
        flat = logits.reshape(-1, V)
        labels = labels.flatten().long()
        return torch.nn.functional.cross_entropy(flat, labels, ignore_index=ignored)

    def dense(name, x):
        return x @ torch.tensor(weights[f"{name}/kernel"]) + torch.tensor(weights[f"{name}/bias"])

    first, second = dense("first", x), dense("second", x[:, 0])
    return loss(of, tokens, classes, (x * x).mean(), first, second).item()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_sum_is_that_of_means_over_all_labels_of_a_kind(tmp_path, minibatches):
    found, weights = evaluated(several, tmp_path, minibatches)
    whole = theirs(several, weights, slice(None))
    assert found == pytest.approx(whole, rel=1e-11)
    starts = range(0, SAMPLES, BATCH)
    of_batches = [theirs(several, weights, slice(at, at + BATCH)) for at in starts]
    assert abs(np.average(of_batches, weights=[8, 8, 6]) / whole - 1) > 1e-3  # another number


def test_what_is_no_sum_is_a_mean_over_samples(tmp_path):
    found, weights = evaluated(kinds_that_multiply, tmp_path)
    starts = range(0, SAMPLES, BATCH)
    of_batches = [theirs(kinds_that_multiply, weights, slice(at, at + BATCH)) for at in starts]
    assert found == pytest.approx(np.average(of_batches, weights=[8, 8, 6]), rel=1e-11)
