"""Keras models as estimators against `train_on_batch`, `evaluate` and `predict`."""

import numpy as np
import pytest

pytest.importorskip("torch")


from support.keras_models import (
    BATCH,
    CLASSES,
    MODELS,
    STEPS,
    L,
    batch_norm,
    batches,
    compiled,
    keras,
    seed,
)

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

# Of Keras's own, where it makes arrays of PyTorch's tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


RESUMED = (2, STEPS)  # steps at which a training ends


def input_fn(sample):
    return lambda params: Dataset.from_batches(sample)


def weights_of(model):
    """Weights and statistics, in the order in which layers create them."""
    return [
        (v.path, v.value.detach().cpu().numpy().copy())
        for v in model.variables
        if "seed_generator" not in v.path
    ]


def own_steps(model, sample):
    """Losses of Keras's own training steps."""
    found = []
    for x, y in sample:
        model.reset_metrics()
        found.append(float(np.asarray(model.train_on_batch(x, y)).ravel()[0]))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_losses_weights_and_statistics_are_those_of_keras(tmp_path, name):
    build, sample = MODELS[name], batches(name)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, CSRunConfig(log_steps=1))
    ours = [estimator.train(input_fn(sample), max_steps=step)["loss"] for step in RESUMED]
    model = build()
    theirs = own_steps(model, sample)
    np.testing.assert_allclose(ours, [theirs[step - 1] for step in RESUMED], rtol=1e-5)
    found = weights_of(estimator.keras_model)
    for (path, value), (_, wanted) in zip(found, weights_of(model), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5, err_msg=path)
    manifest = checkpoints.latest(tmp_path).manifest
    assert {path for path, _ in found} <= set(manifest.tensors)

    results = estimator.evaluate(input_fn(sample))
    x, y = (np.concatenate(each) for each in zip(*map(flat, sample), strict=True))
    wanted = model.evaluate(unflat(name, x), y, batch_size=BATCH, verbose=0, return_dict=True)
    for metric, value in wanted.items():
        assert results[metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    predicted = estimator.predict(input_fn(sample), steps=1)
    own = model.predict(sample[0][0], batch_size=BATCH, verbose=0)
    ours = np.stack([next(iter(each.values())) for each in predicted])
    np.testing.assert_allclose(ours, own, rtol=1e-4, atol=1e-5)


def shared_outputs():
    """Model with one tensor as two outputs, and its input as a third."""
    x = keras.Input((20,))
    hidden = L.Dense(3, name="hidden")(x)
    return keras.Model(x, [hidden, hidden, x])


def same_values():
    """Model with one tensor under two names."""
    x = keras.Input((20,))
    hidden = L.Dense(3)(x)
    return keras.Model(x, {"first": hidden, "second": hidden})


@pytest.mark.parametrize("build", [shared_outputs, same_values])
def test_each_output_of_a_model_is_predicted(tmp_path, build):
    model, (x, _) = build(), batches("mlp", 1)[0]
    model.compile("sgd", "mse")
    targets = keras.tree.map_structure(np.zeros_like, model.predict(x, verbose=0))
    estimator = KerasModelToCerebrasEstimator(model, tmp_path)
    estimator.fit(x, targets, BATCH)
    predicted = [*estimator.predict(lambda params: Dataset.from_arrays(x).batch(BATCH))]
    wanted = keras.tree.flatten(model.predict(x, verbose=0))
    assert len(predicted[0]) == len(wanted)
    for values, name in zip(wanted, predicted[0], strict=True):
        found = [each[name] for each in predicted]
        np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "penalties", "cnn", "attention", "lstm", "two inputs"])
def test_micro_batches_are_parts_of_a_step_of_keras(tmp_path, name):
    build, sample = MODELS[name], batches(name, 2)
    config = CSRunConfig(log_steps=1, micro_batch_size=4)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, config)
    estimator.train(input_fn(sample))
    model = build()
    own_steps(model, sample)
    found = weights_of(estimator.keras_model)
    for (path, value), (_, wanted) in zip(found, weights_of(model), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5, err_msg=path)


class Counts(L.Layer):
    """Layer whose states do not depend on samples: a count, and a decaying vector."""

    def build(self, shape):
        """Start the count at 6 batches."""
        self.count = self.add_weight((), "ones", trainable=False, name="count")
        self.count.assign(6.0)
        self.scale = self.add_weight((shape[-1],), "ones", trainable=False, name="scale")

    def call(self, x, training=None):
        if training:
            self.count.assign(self.count + 1)
            self.scale.assign(self.scale * 0.9)
        return x


@pytest.mark.parametrize(
    ("parts", "precision"),
    [
        (3, "float32"),
        (5, "mixed_bfloat16"),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in [
                (1, "float32"),
                (5, "float32"),
                (1, "mixed_bfloat16"),
                (3, "mixed_bfloat16"),
            ]
        ),
    ],
)
def test_states_that_are_the_same_in_all_micro_batches_are_exact(tmp_path, parts, precision):
    def build():
        seed(9)
        dense = L.Dense(CLASSES, kernel_regularizer="l2", dtype=precision)
        return compiled(keras.Sequential([keras.Input((20,)), Counts(), dense]))

    sample = [(x[:15], y[:15]) for x, y in batches("mlp", 4)]
    config = CSRunConfig(micro_batch_size=15 // parts)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, config)
    estimator.train(input_fn(sample))
    counts = estimator.keras_model.layers[0]
    scale = np.float32(1)
    for _ in sample:
        scale = scale * np.float32(0.9)
    assert float(counts.count) == 6 + len(sample)
    found = counts.scale.value.detach().numpy()
    np.testing.assert_array_equal(found, np.full(20, scale))


class OfAMode(keras.Model):
    """Model with weights read in training only, in evaluation only, or never."""

    def __init__(self):
        super().__init__()
        self.always, self.trained = L.Dense(CLASSES), L.Dense(CLASSES)
        self.evaluated, self.never = L.Dense(CLASSES), L.Dense(CLASSES)

    def build(self, shape):
        for layer in (self.always, self.trained, self.evaluated, self.never):
            layer.build(shape)

    def call(self, x, training=None):
        return self.always(x) + (self.trained(x) if training else self.evaluated(x))


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
def test_weights_that_a_mode_does_not_read_are_in_checkpoints(tmp_path):
    def build():
        seed(9)
        model = OfAMode()
        model.build((None, 20))
        return compiled(model)

    sample, model = batches("mlp", 2), build()
    estimator = KerasModelToCerebrasEstimator(build, tmp_path, CSRunConfig(log_steps=1))
    estimator.train(input_fn(sample))
    results = estimator.evaluate(input_fn(sample[:1]))
    own_steps(model, sample)
    wanted = model.evaluate(*sample[0], batch_size=BATCH, verbose=0, return_dict=True)
    assert results["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    found = weights_of(estimator.keras_model)
    for (path, value), (_, own) in zip(found, weights_of(model), strict=True):
        np.testing.assert_allclose(value, own, rtol=1e-5, atol=1e-5, err_msg=path)


def test_statistics_of_a_batch_are_refused_in_micro_batches(tmp_path):
    estimator = KerasModelToCerebrasEstimator(batch_norm, tmp_path, CSRunConfig(micro_batch_size=4))
    refused = (
        r"layer sequential/batch_normalization: mul mixes .* in 4 micro-batches: remove micro_.*; "
        "use keras.layers.GroupNormalization or LayerNormalization, "
        "or batch_size 4 and gradient_accumulation_steps=4 in the optimizer"
    )
    with pytest.raises(UsageError, match=refused):
        estimator.train(input_fn(batches("batch norm", 1)))


def test_statistics_are_those_of_each_batch_where_keras_accumulates_gradients(tmp_path):
    def build():
        model = batch_norm()
        return compiled(model, keras.optimizers.SGD(0.05, gradient_accumulation_steps=4))

    parts = [
        (x[rows : rows + 4], y[rows : rows + 4])
        for x, y in batches("batch norm", 2)
        for rows in range(0, BATCH, 4)
    ]
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(input_fn(parts))
    model = build()
    own_steps(model, parts)
    found = weights_of(estimator.keras_model)
    for (path, value), (_, wanted) in zip(found, weights_of(model), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5, err_msg=path)


def flat(batch):
    x, y = batch
    return (np.concatenate(x, axis=-1) if isinstance(x, tuple) else x), y


def unflat(name, x):
    return (x[:, :6], x[:, 6:]) if name == "two inputs" else x


class Float(keras.Sequential):
    """Model with names, its own and of layers, that are methods of PyTorch's modules."""


@pytest.mark.parametrize("optimizer", ["sgd", "lion"])
def test_names_of_layers_may_be_those_of_methods(tmp_path, optimizer):
    def build():
        seed(1)
        layers = [L.Dense(8, "relu", name="half"), L.Dense(CLASSES, name="models")]
        return compiled(Float([keras.Input((20,)), *layers]), optimizer)

    model, sample = build(), batches("mlp", 2)
    own_steps(model, sample)
    estimator = KerasModelToCerebrasEstimator(build, tmp_path)
    estimator.train(input_fn(sample))
    for (path, found), (_, own) in zip(
        weights_of(estimator.keras_model), weights_of(model), strict=True
    ):
        assert path.startswith(("float/", "half/", "models/"))
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-6)
