"""train_step with several losses, updates or optimizers, against Keras's fit."""

import random
import re

import numpy as np
import pytest
import torch

pytest.importorskip("torch")

from support.keras_models import BATCH, CLASSES, L, batches, compiled, keras

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ops = keras.ops
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
NOISE = np.random.default_rng(3).standard_normal((BATCH, 4)).astype(np.float32)
SETTINGS = {"batch_size": BATCH, "epochs": 2, "shuffle": False}
HERE = re.escape(__file__)


class GAN(keras.Model):
    """Keras's GAN example for PyTorch, without convolutions. noise: equal in each step."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [keras.Input((20,)), L.Dense(16), L.LeakyReLU(0.2), L.Dense(1)], name="d"
        )
        self.generator = keras.Sequential(
            [keras.Input((4,)), L.Dense(16, "relu"), L.BatchNormalization(), L.Dense(20)], name="g"
        )
        self.trackers = [keras.metrics.Mean(name=name) for name in ("d_loss", "g_loss")]
        self.built = True

    @property
    def metrics(self):
        return self.trackers

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def generated(self):
        """Samples of the generator, whose statistics are updated."""
        return self.generator(ops.convert_to_tensor(NOISE), training=True)

    def update(self, optimizer, loss, weights):
        """Update some weights."""
        self.zero_grad()
        loss.backward()
        gradients = [v.value.grad for v in weights]
        with torch.no_grad():
            optimizer.apply(gradients, weights)

    def train_step(self, real):
        """Update the discriminator, then the generator by the new discriminator."""
        labels = torch.concat([torch.ones((BATCH, 1)), torch.zeros((BATCH, 1))], axis=0)
        labels += 0.05 * torch.linspace(0, 1, 2 * BATCH)[:, None]
        predictions = self.discriminator(torch.concat([self.generated(), real], axis=0))
        d_loss = self.loss_fn(labels, predictions)
        self.update(self.d_optimizer, d_loss, self.discriminator.trainable_weights)
        g_loss = self.loss_fn(torch.zeros((BATCH, 1)), self.discriminator(self.generated()))
        self.update(self.g_optimizer, g_loss, self.generator.trainable_weights)
        for tracker, value in zip(self.trackers, (d_loss, g_loss), strict=True):
            tracker.update_state(value)
        return {m.name: m.result() for m in self.metrics}


def gan():
    random.seed(1)
    model = GAN()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5, staircase=True)
    model.compile(keras.optimizers.Adam(0.003), keras.optimizers.RMSprop(rate), loss)
    return model


class Recipe(keras.Sequential):
    """Model with the train_step of Keras's guide, whose gradients or updates differ."""

    def gradients(self):
        """Return the gradients to apply."""
        return [v.value.grad for v in self.trainable_weights]

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        loss.backward()
        gradients = self.gradients()
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


class Clipped(Recipe):
    """Model that scales gradients."""

    def gradients(self):
        return [0.5 * each for each in super().gradients()]


class InPlace(Recipe):
    """Model that changes gradients in place."""

    def gradients(self):
        for weight in self.trainable_weights:
            weight.value.grad.data.clamp_(-1, 1)
        return super().gradients()


class Norms(Recipe):
    """Model that clips gradients by PyTorch."""

    def gradients(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        return super().gradients()


class Twice(Recipe):
    """Model with two updates."""

    def gradients(self):
        """Return the gradients, after an update by them."""
        found = super().gradients()
        with torch.no_grad():
            self.optimizer.apply(found, self.trainable_weights)
        return found


class TwoOptimizers(Recipe):
    """Model with a second optimizer."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.other = keras.optimizers.SGD(0.1)

    def gradients(self):
        """Return the gradients, after an update by them."""
        found = super().gradients()
        with torch.no_grad():
            self.other.apply(found, self.trainable_weights)
        return found


class Replaced(Recipe):
    """Model that applies other gradients."""

    def gradients(self):
        """Return gradients of one."""
        return [torch.ones(tuple(v.shape)) for v in self.trainable_weights]


class Part(Recipe):
    """Model that updates one layer twice."""

    def gradients(self):
        """Return gradients, of which one layer's have been applied."""
        weights = self.layers[0].trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        return super().gradients()


class After(Recipe):
    """Model that reads weights after the update."""

    def train_step(self, data):
        return {**super().train_step(data), "norm": ops.norm(self.layers[0].kernel)}


def classifier(kind):
    random.seed(1)
    return compiled(kind([keras.Input((20,)), L.Dense(8, "relu"), L.Dense(CLASSES)]))


KINDS = (Clipped, InPlace, Norms, Twice, TwoOptimizers, Replaced, Part, After)
BUILDERS = {kind.__name__: lambda kind=kind: classifier(kind) for kind in KINDS} | {"GAN": gan}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_step_of_any_updates_is_that_of_keras(tmp_path, name):
    build, data = BUILDERS[name], (X,) if name == "GAN" else (X, Y)
    model = build()
    history = model.fit(*data, **SETTINGS, verbose=0).history
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    results = estimator.fit(*data, **SETTINGS).history
    for key, values in history.items():
        assert results[key] == pytest.approx(values, rel=1e-5), key
    for ours, own in zip(estimator.keras_model.weights, model.weights, strict=True):
        found, wanted = (v.value.detach().cpu().numpy() for v in (ours, own))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=5e-6, err_msg=ours.path)


def test_a_resumed_training_has_the_state_of_all_optimizers(tmp_path):
    model = gan()
    model.fit(X, **SETTINGS, verbose=0)
    for epochs in (1, 2):
        estimator = KerasModelToCerebrasEstimator(gan, tmp_path)
        estimator.fit(X, **{**SETTINGS, "epochs": epochs})
    for name in ("d_optimizer", "g_optimizer"):
        found, wanted = (getattr(each, name) for each in (estimator.keras_model, model))
        assert found.iterations.numpy() == wanted.iterations.numpy() == 8
    for ours, own in zip(estimator.keras_model.weights, model.weights, strict=True):
        found, wanted = (v.value.detach().cpu().numpy() for v in (ours, own))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=5e-6, err_msg=ours.path)


def test_other_steps_are_refused_in_micro_batches_and_mixed_precision(tmp_path):
    refused = r"uses an optimizer other than that of compile\(\): in micro-batches, on several sys"
    for config in (CSRunConfig(micro_batch_size=8), CSRunConfig(precision="mixed_bfloat16")):
        estimator = KerasModelToCerebrasEstimator(gan(), tmp_path, config)
        with pytest.raises(UsageError, match=rf"^{HERE}:\d+: GAN.train_step {refused}"):
            estimator.fit(X, **SETTINGS)
    estimator = KerasModelToCerebrasEstimator(classifier(Clipped), tmp_path, config)
    with pytest.raises(UsageError, match=rf"^{HERE}:\d+: train_step computes with a gradient, and"):
        estimator.fit(X, Y, **SETTINGS)
