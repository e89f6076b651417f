"""Keras models with 16-bit policies against Keras's steps; other policies are refused."""

from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch")

from support.keras_models import (
    CLASSES,
    MODELS,
    STEPS,
    L,
    batches,
    compiled,
    keras,
    mlp,
    seed,
)

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.data import Dataset
from csrun.keras import KerasModelToCerebrasEstimator
from csrun.records import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

POLICIES = ("mixed_float16", "mixed_bfloat16")


@contextmanager
def policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def built(build, name):
    """Function that builds a model with a policy."""

    def make():
        with policy(name):
            return build()

    return make


def trained(make, sample, folder, config=None):
    estimator = KerasModelToCerebrasEstimator(make, folder, config or CSRunConfig(log_steps=1))
    found = estimator.train(lambda params: Dataset.from_batches(sample))
    return found["loss"], checkpoints.latest(folder).manifest.tensors


def one_is_quick(number, half):
    """Case of a model with a policy; one policy of each model is quick, in turn."""
    is_slow = POLICIES[number % len(POLICIES)] != half
    return pytest.param(list(MODELS)[number], half, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize(
    ("name", "half"), [one_is_quick(*each) for each in product(range(len(MODELS)), POLICIES)]
)
def test_losses_are_those_of_keras(tmp_path, name, half):
    make, sample = built(MODELS[name], half), batches(name)
    loss, tensors = trained(make, sample, tmp_path)
    own = make()
    for x, y in sample:
        own.reset_metrics()
        found = float(np.asarray(own.train_on_batch(x, y)).ravel()[0])
    # The formats have 11 and 8 bits, and each side rounds elsewhere.
    np.testing.assert_allclose(loss, found, rtol=1e-2)
    assert ("loss_scale" in tensors) == (half == "mixed_float16")


@pytest.mark.parametrize("half", POLICIES)
def test_a_policy_has_the_kernels_of_a_configured_format(tmp_path, half):
    sample, kernels = batches("mlp"), []
    for name, config in ((half, CSRunConfig()), ("float32", CSRunConfig(precision=half))):
        trained(built(mlp, name), sample, tmp_path / name, config)
        kernels.append(checkpoints.latest(tmp_path / name).manifest.identity["kernels"])
    assert kernels[0] == kernels[1]  # their products, too


def test_a_step_that_overflows_is_skipped_as_by_keras(tmp_path):
    def build():
        seed(1)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 2.0**24, 3)
        return mlp(optimizer)

    make, sample = built(build, "mixed_float16"), batches("mlp", 12)
    estimator = KerasModelToCerebrasEstimator(make, tmp_path, CSRunConfig(log_steps=1))
    estimator.train(lambda params: Dataset.from_batches(sample))
    own = make()
    for x, y in sample:
        own.train_on_batch(x, y)
    newest = checkpoints.latest(tmp_path)
    scale = {"loss_scale": np.empty((), np.float64)}
    newest.take(scale)
    wanted = float(own.optimizer.dynamic_scale.value)
    assert scale["loss_scale"] == wanted < 2.0**24
    for ours, theirs in zip(estimator.keras_model.variables, own.variables, strict=True):
        ours, theirs = (v.value.detach().cpu().numpy() for v in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-3)


RECORDED = {
    "adamax": lambda: keras.optimizers.Adamax(1e-3),
    "accumulated": lambda: keras.optimizers.SGD(
        1e-3, momentum=0.9, use_ema=True, clipnorm=0.5, gradient_accumulation_steps=2
    ),
}


@pytest.mark.parametrize(("name", "half"), [*zip(RECORDED, POLICIES, strict=True)])
def test_a_recorded_update_is_that_of_keras(tmp_path, name, half):
    """Updates are too small for 16-bit weights: these are float32."""
    make, sample = built(lambda: mlp(RECORDED[name]()), half), batches("mlp", 6)
    trained(make, sample[:3], tmp_path, CSRunConfig())
    config = CSRunConfig(micro_batch_size=4)
    estimator = KerasModelToCerebrasEstimator(make, tmp_path, config)  # and resumes
    estimator.train(lambda params: Dataset.from_batches(sample))
    own, first = make(), make()
    for x, y in sample:
        own.train_on_batch(x, y)
    own.optimizer.finalize_variable_values(own.trainable_variables)
    assert_steps_alike(estimator.keras_model, own, first)


def assert_steps_alike(ours, own, first, most=0.05):
    """Assert that weights have moved as in Keras, within the rounding of gradients."""
    for found, wanted, before in zip(ours.variables, own.variables, first.variables, strict=True):
        found, wanted, before = (
            v.value.detach().cpu().numpy().astype(np.float32) for v in (found, wanted, before)
        )
        assert np.linalg.norm(wanted - before) > 0
        assert np.linalg.norm(found - wanted) < most * np.linalg.norm(wanted - before)


@pytest.mark.parametrize("size", ["auto", 4])
def test_a_recorded_step_that_overflows_is_skipped_as_by_keras(tmp_path, size):
    def build():
        optimizer = keras.optimizers.Adamax(0.01, weight_decay=0.1)
        return mlp(keras.optimizers.LossScaleOptimizer(optimizer, 2.0**24, 3))

    make, sample = built(build, "mixed_float16"), batches("mlp", 12)
    config = CSRunConfig(log_steps=1, micro_batch_size=size)
    estimator = KerasModelToCerebrasEstimator(make, tmp_path, config)
    estimator.train(lambda params: Dataset.from_batches(sample))
    own = make()
    for x, y in sample:
        own.train_on_batch(x, y)
    found, wanted = estimator.keras_model.optimizer, own.optimizer
    for name in ("dynamic_scale", "step_counter", "iterations"):
        assert float(getattr(found, name).value) == float(getattr(wanted, name).value), name
    assert float(found.dynamic_scale.value) < 2.0**24
    assert_steps_alike(estimator.keras_model, own, make())


def test_a_fixed_scale_changes_nothing_but_what_is_rounded(tmp_path):
    sample = batches("mlp")
    make = lambda: mlp(keras.optimizers.SGD(0.1, loss_scale_factor=64.0))  # noqa: E731
    loss, tensors = trained(built(make, "mixed_bfloat16"), sample, tmp_path / "scaled")
    plain, _ = trained(lambda: mlp(keras.optimizers.SGD(0.1)), sample, tmp_path / "plain")
    np.testing.assert_allclose(loss, plain, rtol=1e-2)
    assert "loss_scale" in tensors


def test_a_configured_format_is_that_of_the_run(tmp_path, caplog):
    config = CSRunConfig(precision="mixed_cbfloat16")
    with caplog.at_level("INFO", "csrun"):
        trained(built(mlp, "mixed_bfloat16"), batches("mlp"), tmp_path, config)
    assert "bfloat16: numbers" not in caplog.text
    assert "CB16 without dynamic loss scaling" in caplog.text


def two_formats():
    layers = [L.Dense(8, dtype="mixed_float16"), L.Dense(CLASSES, dtype="mixed_bfloat16")]
    return compiled(keras.Sequential([keras.Input((20,)), *layers]))


REFUSED = {
    "a run stores numbers in one format, got layer": two_formats,
    "policy float16 of layer .* is not supported: build the model with float32": built(
        mlp, "float16"
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_policy_is_refused(tmp_path, message):
    estimator = KerasModelToCerebrasEstimator(REFUSED[message], tmp_path)
    with pytest.raises(UsageError, match="^" + message):
        estimator.train(lambda params: Dataset.from_batches(batches("mlp", STEPS)))
