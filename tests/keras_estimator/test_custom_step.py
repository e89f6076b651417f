"""User-defined train_step against Keras's fit; steps other than a loss and an update."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("torch")

from support.keras_models import BATCH, CLASSES, L, batches, compiled, keras, seed

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ops = keras.ops
X, Y = (np.concatenate(each) for each in zip(*batches("mlp", 4), strict=True))
SETTINGS = {"batch_size": BATCH, "epochs": 2, "shuffle": False}
HERE = re.escape(__file__)


class Super(keras.Sequential):
    """Model that calls the built-in step."""

    def train_step(self, data):
        """Return the results of the built-in step, and a value of the batch."""
        return {**super().train_step(data), "batch_mean": ops.mean(data[0])}


class Named(Super):
    """Model that returns values under its metrics' names, and reads one result."""

    def train_step(self, data):
        """Return the results of the built-in step, with the batch's loss as the loss."""
        accuracy = super().train_step(data)["accuracy"]
        return {"loss": ops.mean(data[0]), "accuracy": accuracy}

    def get_metrics_result(self):
        found = super().get_metrics_result()
        return {name: found[name] for name in ("accuracy", "loss")}


class SuperFunctional(keras.Model):
    """Functional model that calls the built-in step."""

    def train_step(self, data):
        return super().train_step(data)


class Recipe(keras.Sequential):
    """Model with the train_step of Keras's guide for PyTorch."""

    def gradients(self):
        """Return the gradients to apply."""
        return [v.value.grad for v in self.trainable_weights]

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        gradients = self.gradients()
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Autoencoder(keras.Model):
    """Variational autoencoder that computes its loss in train_step."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.encoder, self.decoder = L.Dense(6, "tanh"), L.Dense(20)
        self.trackers = {n: keras.metrics.Mean(name=n) for n in ("total", "rebuilt", "kl")}

    @property
    def metrics(self):
        return [*self.trackers.values()]

    def call(self, x):
        return self.decoder(self.encoder(x)[:, :3])

    def train_step(self, data):
        self.zero_grad()
        mean, log_var = ops.split(self.encoder(data), 2, axis=-1)
        rebuilt = ops.mean(ops.sum(ops.square(data - self.decoder(mean)), axis=-1))
        kl = ops.mean(ops.sum(-0.5 * (1 + log_var - mean**2 - ops.exp(log_var)), axis=1))
        total = rebuilt + kl
        total.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        for name, value in {"total": total, "rebuilt": rebuilt, "kl": kl}.items():
            self.trackers[name].update_state(value)
        found = {name: each.result() for name, each in self.trackers.items()}
        return {"loss": found.pop("total"), **found, "last": kl}


def classifier(kind, **options):
    seed(1)
    return compiled(kind([keras.Input((20,)), L.Dense(8, "relu", **options), L.Dense(CLASSES)]))


def penalized(kind):
    return classifier(kind, activity_regularizer=keras.regularizers.L2(0.1))


def with_a_step_of_the_instance():
    model = classifier(keras.Sequential)
    built_in = model.train_step
    model.train_step = lambda data: {**built_in(data), "batch_max": ops.max(data[0])}
    return model


def two_outputs():
    seed(1)
    x = keras.Input((20,))
    hidden = L.Dense(8, "relu")(x)
    model = SuperFunctional(x, [L.Dense(3, name="first")(hidden), L.Dense(1, name="last")(hidden)])
    model.compile("adam", ["mse", "mae"], metrics=[["mae"], ["mse"]])
    return model


def autoencoder():
    seed(1)
    model = Autoencoder()
    model(X[:1])
    model.compile(keras.optimizers.Adam(0.01))
    return model


@pytest.mark.parametrize(
    ("build", "data", "micro_batch"),
    [
        (lambda: classifier(Super), (X, Y), "auto"),
        (lambda: penalized(Super), (X, Y), "auto"),
        (lambda: classifier(Named), (X, Y), "auto"),
        (lambda: penalized(Recipe), (X, Y), "auto"),
        (lambda: penalized(Recipe), (X, Y), 8),
        (with_a_step_of_the_instance, (X, Y), "auto"),
        (two_outputs, (X, [X[:, :3], X[:, 3:4]]), "auto"),
        (autoencoder, (X,), "auto"),
    ],
    ids=[
        "super",
        "penalized",
        "names of metrics",
        "recipe",
        "recipe in micro-batches",
        "set on the model",
        "two outputs",
        "autoencoder",
    ],
)
def test_a_step_of_one_loss_and_one_update_is_that_of_keras(tmp_path, build, data, micro_batch):
    model = build()
    history = model.fit(*data, **SETTINGS, verbose=0).history
    config = CSRunConfig(micro_batch_size=micro_batch)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, config)
    results = estimator.fit(*data, **SETTINGS).history
    assert {*results} == {*history}
    for name, values in history.items():
        assert results[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name
    for ours, own in zip(estimator.keras_model.weights, model.weights, strict=True):
        found, wanted = (v.value.detach().cpu().numpy() for v in (ours, own))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


class SuperTest(keras.Sequential):
    """Model that calls the built-in test_step."""

    def test_step(self, data):
        """Return the results of the built-in step, and a value of the batch."""
        return {**super().test_step(data), "batch_mean": ops.mean(data[0])}


class RecipeTest(keras.Sequential):
    """Model with the test_step of Keras's guide."""

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class NoLoss(keras.Sequential):
    """Model whose evaluation has no loss, and whose prediction has two values."""

    def test_step(self, data):
        """Return the share of positive features."""
        return {"positive": ops.mean(ops.cast(self(data[0]) > 0, "float32"))}

    def predict_step(self, data):
        """Return the probabilities of classes, and the largest one."""
        probabilities = ops.softmax(super().predict_step(data))
        return {"classes": probabilities, "largest": ops.max(probabilities, axis=-1)}


@pytest.mark.parametrize("kind", [SuperTest, RecipeTest, NoLoss])
@pytest.mark.parametrize("micro_batch", ["auto", 8])
def test_an_own_test_step_is_evaluated_as_in_keras(tmp_path, kind, micro_batch):
    build = lambda: classifier(kind)  # noqa: E731
    model = build()
    history = model.fit(X, Y, **SETTINGS, verbose=0, validation_data=(X, Y)).history
    config = CSRunConfig(micro_batch_size=micro_batch)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, config)
    found = estimator.fit(X, Y, **SETTINGS, validation_data=(X, Y)).history
    assert found.keys() == history.keys()  # RecipeTest's accuracy is that of the evaluation
    for name, values in history.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    wanted = _flat(model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True))
    found = estimator.evaluate(lambda _: Dataset.from_arrays(X, Y).batch(BATCH))
    assert {*found} == {*wanted, "global_step"}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(float(value), rel=1e-5), name


def _flat(values):
    """Numbers by name, flattened from nested dicts."""
    found = {}
    for name, value in values.items():
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found


def test_an_own_predict_step_predicts_as_in_keras(tmp_path):
    model = classifier(NoLoss)
    estimator = KerasModelToCerebrasEstimator(model, tmp_path)
    estimator.fit(X, Y, **SETTINGS)
    found = [*estimator.predict(lambda _: Dataset.from_arrays(X).batch(BATCH))]
    wanted = model.predict(X, verbose=0)
    for number, values in enumerate(wanted.values()):
        rows = [each[f"output_{number}"] for each in found]
        np.testing.assert_allclose(rows, values, rtol=1e-4, atol=1e-6)


class Accumulates(Recipe):
    """Model that accumulates the gradients of all steps."""

    def zero_grad(self, set_to_none=True):
        """Do nothing."""


class NoUpdate(keras.Sequential):
    """Model without an update."""

    def train_step(self, data):
        loss = ops.mean(self(data[0]))
        loss.backward()
        return {"loss": loss}


class Counts(Recipe):
    """Model that reads the number of the step."""

    def gradients(self):
        ops.cast(self.optimizer.iterations, "float32")
        return super().gradients()


class CountsSteps(Recipe):
    """Model that counts steps in an integer."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.count = self.add_weight(shape=(), dtype="int32", trainable=False, name="count")

    def compute_loss(self, *given, **options):
        """Return a loss that depends on the count."""
        self.count.assign(self.count + 1)
        return super().compute_loss(*given, **options) * ops.cast(self.count, "float32")


class Unlisted(Recipe):
    """Model that updates a metric missing in its `metrics`."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.mean = keras.metrics.Mean()

    @property
    def metrics(self):
        return []

    def train_step(self, data):
        self.mean.update_state(data[0])
        return {**super().train_step(data), "mean": self.mean.result()}


class Returns(Recipe):
    """Model that returns another value. function: of the model."""

    def train_step(self, data):
        return {**super().train_step(data), "value": type(self).function(self)}


def returning(name, function):
    return type(name, (Returns,), {"function": staticmethod(function)})


class Early(Recipe):
    """Model that returns a result from before an update."""

    def train_step(self, data):
        found = super().train_step(data)
        self.metrics[0].update_state(ops.mean(data[0]))
        return {**found, "mean": ops.mean(data[0])}


class Bare(Recipe):
    """Model whose train_step returns a number instead of a dict."""

    def train_step(self, data):
        super().train_step(data)
        return ops.mean(data[0])


RESULT = "the step computes with the result of a metric, which csrun updates after the step"
REFUSED = {
    Accumulates: "Accumulates.train_step applies a gradient of .* to which those of earlier steps",
    NoUpdate: "NoUpdate.train_step does not apply gradients: call optimizer.apply in it",
    Counts: "the step reads .*iteration of the optimizer, which csrun updates: use a callback",
    CountsSteps: "the step assigns .*count, which is constant in csrun: make it a float32",
    returning("Scaled", lambda model: 100 * model.metrics[0].result()): RESULT,
    returning("Exp", lambda model: ops.exp(model.metrics[0].result())): RESULT,
    returning("ToFloat", lambda model: float(model.metrics[0].result())): RESULT,
    returning("Rate", lambda model: model.optimizer.learning_rate): (
        "Rate.train_step returns value, a Variable that is constant in csrun: return tensors"
    ),
    returning("Reset", lambda model: model.reset_metrics()): "the step resets metric loss, which",
    Early: "Early.train_step returns loss, a result before the metric's last update: call result",
    Bare: "Bare.train_step returns a TracedTensor: return a dict",
    Unlisted: "the step assigns .*, which is constant in csrun: .* the model's `metrics` return",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_another_step_is_refused(tmp_path, kind):
    estimator = KerasModelToCerebrasEstimator(classifier(kind), tmp_path)
    with pytest.raises(UsageError, match=rf"^{HERE}:\d+: {REFUSED[kind]}"):
        estimator.fit(X, Y, **SETTINGS)


class CountsInPython(Super):
    """Model that counts steps in Python, and adds a term to every second loss."""

    steps = 0

    def compute_loss(self, *args, **options):
        found = super().compute_loss(*args, **options)
        return found + 1.0 if self.steps % 2 else found

    def train_step(self, data):
        self.steps += 1
        return super().train_step(data)


def test_a_number_of_python_code_in_a_step_is_warned_of(tmp_path, caplog):
    estimator = KerasModelToCerebrasEstimator(classifier(CountsInPython), tmp_path)
    estimator.fit(X, Y, **SETTINGS)
    said = re.compile(rf"{HERE}:\d+: train_step sets self.steps, but its Python code runs once")
    assert len([each for each in caplog.messages if said.match(each)]) == 1
