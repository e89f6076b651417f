"""keras.random in a model: distributions, seeds, equal draws in micro-batches, and a VAE."""

import random
import re
from math import erf, sqrt

import numpy as np
import pytest
import torch

pytest.importorskip("torch")

from support.keras_models import L, keras

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ops, rng = keras.ops, keras.random
HERE = re.escape(__file__)
SAMPLES, BATCH, DRAWS = 128, 16, 40
X = np.random.default_rng(0).standard_normal((SAMPLES, 4)).astype(np.float32)
SEED = rng.SeedGenerator(1)
LOGITS = np.log([[0.1, 0.2, 0.7]]).astype(np.float32)


def normal_cdf(x):
    return np.vectorize(lambda each: (1 + erf(each / sqrt(2))) / 2)(x)


def chosen(n):
    logits = ops.ones((n, 1)) * ops.convert_to_tensor(LOGITS)
    return rng.categorical(logits, DRAWS, seed=SEED)


#: What each output of the model draws, and the distribution function of the numbers.
CONTINUOUS = {
    "normal": (
        lambda n: rng.normal((n, DRAWS), 1.0, 2.0, seed=SEED),
        lambda x: normal_cdf((x - 1) / 2),
    ),
    "uniform": (lambda n: rng.uniform((n, DRAWS), -1, 3, seed=SEED), lambda x: (x + 1) / 4),
    "truncated": (
        lambda n: rng.truncated_normal((n, DRAWS), seed=SEED),
        lambda x: (normal_cdf(x) - normal_cdf(-2)) / (normal_cdf(2) - normal_cdf(-2)),
    ),
    "rows": (lambda n: ops.reshape(rng.normal((n * 4, 10)), (n, DRAWS)), normal_cdf),
}
DISCRETE = {
    "integers": (
        lambda n: rng.randint((n, DRAWS), 2, 7, seed=SEED),
        dict.fromkeys(range(2, 7), 0.2),
    ),
    "classes": (chosen, {0: 0.1, 1: 0.2, 2: 0.7}),
    "coins": (lambda n: rng.uniform((n, DRAWS), seed=SEED) < 0.3, {0: 0.7, 1: 0.3}),
}
ONE_FOR_ALL = {"all samples": lambda n: rng.normal((DRAWS,), seed=SEED)}


class Draws(L.Layer):
    """Layer that returns draws next to its inputs."""

    def call(self, x):
        """Return each draw, as floats with a row per sample."""
        drawn = {name: draw for name, (draw, _) in {**CONTINUOUS, **DISCRETE}.items()} | ONE_FOR_ALL
        one = ops.ones_like(x[:, :1])
        return [one * ops.cast(draw(ops.shape(x)[0]), "float32") for draw in drawn.values()]


def drawn(folder, **config):
    """Draws of 8 batches, by name."""
    features = keras.Input((4,))
    model = keras.Model(features, [L.Dense(1)(features), *Draws()(features)])
    model.compile("sgd", ["mse", *[None] * 8])
    estimator = KerasModelToCerebrasEstimator(model, folder, CSRunConfig(**config))
    estimator.train(lambda _: Dataset.from_arrays(X, X[:, :1]).batch(BATCH), max_steps=1)
    found = estimator.predict(lambda _: Dataset.from_arrays(X).batch(BATCH))
    rows = [[*each.values()][1:] for each in found]
    names = [*CONTINUOUS, *DISCRETE, *ONE_FOR_ALL]
    return {name: np.stack(each) for name, each in zip(names, zip(*rows, strict=True), strict=True)}


@pytest.fixture(scope="module")
def draws(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("draws"))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_have_their_distribution(draws, name):
    """Source: Kolmogorov-Smirnov, a thousandth of samples is farther away"""
    values = np.sort(draws[name].ravel())
    ranks = np.arange(values.size + 1) / values.size
    wanted = CONTINUOUS[name][1](values)
    distance = max(abs(wanted - ranks[1:]).max(), abs(wanted - ranks[:-1]).max())
    assert distance < 1.95 / sqrt(values.size)
    assert len(np.unique(draws[name], axis=0)) == SAMPLES


@pytest.mark.parametrize("name", DISCRETE)
def test_choices_have_their_frequencies(draws, name):
    values, shares = draws[name].ravel(), DISCRETE[name][1]
    assert {*values} == {*shares}
    for value, share in shares.items():
        deviation = sqrt(share * (1 - share) / values.size)
        assert abs((values == value).mean() - share) < 4 * deviation


def test_draws_differ_between_draws_and_steps(draws):
    assert len(np.unique(draws["all samples"], axis=0)) == SAMPLES // BATCH
    assert abs(np.corrcoef(draws["normal"].ravel(), draws["rows"].ravel())[0, 1]) < 0.1


def test_draws_depend_on_the_seed_of_the_run_and_not_on_micro_batches(draws, tmp_path):
    split = drawn(tmp_path / "split", micro_batch_size=4)
    other = drawn(tmp_path / "other", seed=7)
    for name, values in draws.items():
        np.testing.assert_array_equal(split[name], values)
        assert (other[name] != values).any()


class Dropped(L.Layer):
    """Layer with dropout in every mode."""

    def __init__(self):
        super().__init__()
        self.dropout, self.spatial = L.Dropout(0.75), L.SpatialDropout1D(0.5)

    def call(self, x):
        """Return ones, with dropout per element, and per channel."""
        ones = ops.repeat(0.0 * x + 1.0, DRAWS, axis=1)
        channels = self.spatial(ops.stack([ones, ones], axis=1), training=True)
        return self.dropout(ones, training=True), channels


@pytest.mark.parametrize("size", [BATCH, 4])
def test_layers_called_with_training_drop_values_in_predictions(tmp_path, size):
    features = keras.Input((4,))
    model = keras.Model(features, [L.Dense(1)(features), *Dropped()(features)])
    model.compile("sgd", ["mse", None, None])
    estimator = KerasModelToCerebrasEstimator(model, tmp_path, CSRunConfig(micro_batch_size=size))
    estimator.train(lambda _: Dataset.from_arrays(X, X[:, :1]).batch(BATCH), max_steps=1)
    found = estimator.predict(lambda _: Dataset.from_arrays(X).batch(BATCH))
    columns = zip(*(one.values() for one in found), strict=True)
    _, each, channels = map(np.stack, columns)
    assert {*each.ravel()} == {0, 4}
    assert (each == 4).mean() == pytest.approx(0.25, abs=0.012)  # 4 deviations
    assert {*channels.ravel()} == {0, 2}
    np.testing.assert_array_equal(channels[:, 0], channels[:, 1])
    assert (channels == 2).mean() == pytest.approx(0.5, abs=0.014)
    assert (each[:BATCH] != each[BATCH : 2 * BATCH]).any()


class Sampling(L.Layer):
    """Normal sample from mean and log-variance. seed: an integer."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed_generator = rng.SeedGenerator(1337) if seed is None else seed

    def call(self, inputs):
        mean, log_var = inputs
        shape = ops.shape(mean)
        noise = rng.normal((shape[0], shape[1]), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise


class VAE(keras.Model):
    """Variational autoencoder of Keras's example."""

    def __init__(self, seed):
        super().__init__()
        self.hidden, self.mean, self.log_var = L.Dense(16, "relu"), L.Dense(2), L.Dense(2)
        self.sampling = Sampling(seed)
        self.decoder = keras.Sequential([L.Dense(16, "relu"), L.Dense(4)])
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "kl")]

    @property
    def metrics(self):
        return self.trackers

    def call(self, x):
        """Return mean, log-variance, and the reconstruction of a sample."""
        hidden = self.hidden(x)
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        return mean, log_var, self.decoder(self.sampling([mean, log_var]))

    def step(self, data):
        mean, log_var, rebuilt = self(data)
        kl = ops.mean(ops.sum(-0.5 * (1 + log_var - mean**2 - ops.exp(log_var)), axis=1))
        loss = ops.mean(ops.sum(ops.square(data - rebuilt), axis=1)) + 0.1 * kl
        for tracker, value in zip(self.trackers, (loss, kl), strict=True):
            tracker.update_state(value)
        return loss

    def train_step(self, data):
        loss = self.step(data)
        self.zero_grad()
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        self.step(data)
        return {m.name: m.result() for m in self.metrics}


def vae(seed=None):
    random.seed(1)
    model = VAE(seed)
    model(X[:BATCH])
    model.compile(keras.optimizers.Adam(0.02))
    return model


def trained_both(folder, seed, epochs):
    """Histories of csrun and of Keras."""
    settings = {"batch_size": BATCH, "epochs": epochs, "shuffle": False}
    model = vae(seed)
    wanted = model.fit(X, **settings, verbose=0, validation_data=(X,)).history
    estimator = KerasModelToCerebrasEstimator(lambda: vae(seed), folder)
    found = estimator.fit(X, **settings, validation_data=(X,)).history
    assert {*found} == {*wanted} == {"loss", "kl", "val_loss", "val_kl"}
    return found, wanted


def test_an_integer_as_seed_draws_the_numbers_of_keras_in_each_step(tmp_path):
    found, wanted = trained_both(tmp_path, 5, 2)
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name


def test_a_vae_trains_as_in_keras(tmp_path):
    """Draws differ: means over the last epochs are compared."""
    found, wanted = trained_both(tmp_path, None, 40)
    for name, values in wanted.items():
        assert np.mean(found[name][-10:]) == pytest.approx(np.mean(values[-10:]), rel=0.15), name
    assert np.mean(found["loss"][-10:]) < 0.7 * found["loss"][0]


class Shuffled(L.Layer):
    """Layer that shuffles the samples."""

    def call(self, x):
        return rng.shuffle(x)


def test_another_distribution_is_refused_with_its_line(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Shuffled(), L.Dense(1)])
    model.compile("sgd", "mse")
    estimator = KerasModelToCerebrasEstimator(model, tmp_path)
    refused = rf"^{HERE}:\d+: keras.random.shuffle is not supported in a step: draw uniform"
    with pytest.raises(UsageError, match=refused):
        estimator.train(lambda _: Dataset.from_arrays(X, X[:, :1]).batch(BATCH))
