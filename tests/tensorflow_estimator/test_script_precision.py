"""Mixed precision set by scripts: policies of Keras, loss scales of TensorFlow."""

import msgspec
import pytest
from support.tf_models import (
    CerebrasEstimator,
    CSEstimatorSpec,
    CSRunConfig,
    batches,
    cross_entropy,
    ignore_warnings,
    tf,
    v1,
    weights,
)

import cerebras.tf.cs_estimator  # noqa: F401  puts names into TensorFlow
from csrun import nn
from csrun.data import Dataset
from csrun.records import checkpoints
from csrun.tensorflow.script_precision import HALF_POLICIES, LossScales, StorageChoice

pytestmark = ignore_warnings
DATA = batches(3)


class Scale(v1.train.experimental.DynamicLossScale):
    """The original's loss scale, with its own limits."""

    def get_config(self):
        limits = {"min_loss_scale": 2.0, "max_loss_scale": 512.0, "overflow_tolerance": 0.1}
        return super().get_config() | limits


def model_fn(features, labels, mode, params):
    """Model whose layers have a policy, and whose optimizer scales the loss."""
    policy = tf.keras.mixed_precision.experimental.Policy(params["policy"], loss_scale=None)
    layer = tf.keras.layers.Dense(32, "relu", dtype=policy)
    loss = cross_entropy(tf.keras.layers.Dense(10, dtype=policy)(layer(features)), labels)
    train_op = None
    if mode == "train":
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        scaled = v1.train.experimental.MixedPrecisionLossScaleOptimizer(optimizer, Scale(256.0, 2))
        train_op = scaled.minimize(loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def trained(folder, policy, **options):
    """Train; return the estimator, and precision and kernels of the last checkpoint."""
    config = CSRunConfig(log_step_count_steps=1, **options)
    estimator = CerebrasEstimator(model_fn, folder, config=config, params={"policy": policy})
    estimator.train(lambda: Dataset.from_batches(DATA), steps=len(DATA))
    identity = checkpoints.latest(folder).manifest.identity
    return estimator, identity["precision"], identity["kernels"]


@pytest.mark.parametrize("policy", HALF_POLICIES)
def test_a_policy_selects_the_format_and_the_loss_is_scaled(policy, tmp_path):
    estimator, precision, kernels = trained(tmp_path / "mixed", policy)
    assert precision == policy
    configured = trained(tmp_path / "configured", "float32", precision=policy)
    assert kernels == configured[2]  # its products, too
    last = weights(tmp_path / "mixed", 3)
    # 256 is doubled after 2 steps
    assert (last["loss_scale"], last["steps_since_rescale"]) == (512.0, 1.0)
    _, precision, _ = trained(tmp_path / "plain", "float32")
    assert precision == "float32"
    plain = weights(tmp_path / "plain", 3)
    assert "loss_scale" not in plain
    difference = abs(last["dense/kernel"] - plain["dense/kernel"]).max()
    assert 0 < difference < 0.01
    assert estimator.evaluate(lambda: Dataset.from_batches(DATA))["loss"] > 0


def test_a_configured_precision_overrules_a_policy(tmp_path):
    assert trained(tmp_path, "mixed_float16", precision="float32")[1] == "float32"


def test_cb16_is_selected_by_the_options_of_the_system():
    assert StorageChoice(cb16=True).of("mixed_float16").name == "cbfloat16"
    assert StorageChoice(cb16=True).of(None) is None


def test_a_loss_scale_becomes_options_of_the_optimizer():
    with tf.Graph().as_default():
        dynamic = LossScales([Scale(1024.0, 7)]).applied(nn.SGD(learning_rate=0.1))
        fixed = v1.train.experimental.FixedLossScale(64.0)
        static = LossScales([fixed]).applied(nn.SGD(learning_rate=0.1))
    assert msgspec.structs.asdict(dynamic) | {
        "loss_scaling_factor": "dynamic",
        "initial_loss_scale": 1024.0,
        "steps_per_increase": 7,
        "min_loss_scale": 2.0,
        "max_loss_scale": 512.0,
        "overflow_tolerance": 0.1,
    } == msgspec.structs.asdict(dynamic)
    assert static.loss_scaling_factor == 64.0
