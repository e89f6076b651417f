"""TensorFlow's estimator API: specifications, options, metrics, predictions."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tf_models import (
    CSEstimatorSpec,
    CSRunConfig,
    batches,
    cross_entropy,
    ignore_warnings,
    tf,
    trained,
    v1,
    weights,
)

from csrun.base.errors import UsageError

pytestmark = ignore_warnings


def dense(features):
    return v1.layers.dense(features, 10)


def minimized(loss, mode="train", **options):
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, **options)


def test_specifications_are_checked_as_the_original_does():
    call = (lambda x: {}, [1])
    with pytest.raises(ValueError, match="only one of `host_call` or `eval_metric_ops`, not both"):
        CSEstimatorSpec("eval", loss=1, host_call=call, eval_metric_ops={"a": (1, 2)})
    with pytest.raises(ValueError, match="host_call must be an iterable with length 2 or 3"):
        CSEstimatorSpec("eval", loss=1, host_call=(len,))
    with pytest.raises(ValueError, match="Expected first item of host_call to be a callable"):
        CSEstimatorSpec("eval", loss=1, host_call=(1, []))
    with pytest.raises(ValueError, match="Expected second item of host_call to be an iterable"):
        CSEstimatorSpec("eval", loss=1, host_call=(len, 1))


def test_options_of_a_run_are_checked():
    options = CSRunConfig(tf_random_seed=5, save_checkpoints_steps=7, log_step_count_steps=None)
    assert (options.to_csrun().seed, options.to_csrun().save_checkpoints_steps) == (5, 7)
    with pytest.raises(UsageError, match="CSRunConfig has no option save_steps"):
        CSRunConfig(save_steps=1)
    with pytest.raises(UsageError, match="train_distribute is not supported"):
        CSRunConfig(train_distribute=object())


def test_importing_the_package_imports_no_framework():
    code = (
        "import sys, csrun.tensorflow, cerebras.tf.cs_estimator, cerebras.tf.run_config\n"
        "found = {'tensorflow', 'tf_keras', 'keras', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_evaluation_has_the_metrics_of_tensorflow_and_predictions(tmp_path):
    def model_fn(features, labels, mode, params):
        logits = dense(features)
        label = tf.argmax(logits, 1)
        if mode == "infer":
            return CSEstimatorSpec(mode, predictions={"label": label, "logits": logits})
        loss = cross_entropy(logits, labels)
        if mode == "train":
            return minimized(loss)

        def metrics(label, labels):
            return {
                "accuracy": v1.metrics.accuracy(labels, label),
                "mean_label": v1.metrics.mean(tf.cast(label, tf.float32)),
            }

        return CSEstimatorSpec(mode, loss=loss, host_call=(metrics, [label, labels]))

    data = batches(5)
    estimator = trained(model_fn, tmp_path, data)
    short = [*data, (data[0][0][:7], data[0][1][:7])]
    results = estimator.evaluate(lambda: short)
    predicted = list(estimator.predict(lambda: [x for x, _ in short], predict_keys="label"))

    def endless():
        return tf.data.Dataset.from_tensor_slices(np.stack([x for x, _ in data])).repeat()

    few = list(estimator.predict(endless, num_samples=19))  # of batches of 16
    assert [each["label"] for each in few] == [each["label"] for each in predicted[:19]]
    with pytest.raises(UsageError, match="num_samples must be at least 1, got 0"):
        estimator.predict(lambda: data, num_samples=0)
    labels = np.concatenate([y for _, y in short])
    found = np.array([each["label"] for each in predicted])
    assert [*predicted[0]] == ["label"]
    assert results["accuracy"] == pytest.approx(np.mean(found == labels), rel=1e-6)
    assert results["mean_label"] == pytest.approx(found.mean(), rel=1e-6)


def test_a_host_call_may_use_static_shapes_operators_and_halves(tmp_path):
    def model_fn(features, labels, mode, params):
        logits = dense(features)
        loss = cross_entropy(logits, labels)
        if mode == "train":
            return minimized(loss)

        def metrics(logits, labels):
            label = tf.reshape(tf.argmax(logits, 1), labels.shape)
            weights = tf.cast(labels > 0, tf.float16)
            value, update = v1.metrics.accuracy(labels, label, weights * logits[:, 0] ** 0)
            return {"accuracy": (value, tf.group(update))}

        return CSEstimatorSpec(mode, loss=loss, host_call=(metrics, [logits, labels]))

    data = batches(3)
    estimator = trained(model_fn, tmp_path, data)
    found = weights(tmp_path, 3)
    kernel, bias = (next(v for n, v in found.items() if n.endswith(e)) for e in ("kernel", "bias"))
    labels = np.concatenate([y for _, y in data])
    predicted = (np.concatenate([x for x, _ in data]) @ kernel + bias).argmax(1)
    wanted = np.mean((predicted == labels)[labels > 0])
    assert estimator.evaluate(lambda: data)["accuracy"] == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(UsageError, match="the last batch has fewer samples, and the graph's"):
        estimator.evaluate(lambda: [*data, (data[0][0][:7], data[0][1][:7])])


def test_convolutions_take_arguments_in_the_order_of_tensorflow_2_2():
    import cerebras.tf.cs_estimator  # noqa: F401  changes TensorFlow

    layers = tf.keras.layers
    old = layers.Conv2D(4, 3, (1, 1), "same", "channels_last", (1, 1), "relu", False)
    assert (old.groups, old.activation, old.use_bias) == (1, tf.keras.activations.relu, False)
    new = layers.Conv2D(4, 3, (1, 1), "same", "channels_last", (1, 1), 2, "relu")
    assert (new.groups, new.activation, new.use_bias) == (2, tf.keras.activations.relu, True)
    from tensorflow.python.keras.layers import Flatten, concatenate

    assert (Flatten, concatenate) == (layers.Flatten, layers.concatenate)


def test_a_script_is_checked_before_the_job(tmp_path: Path):
    from csrun.launch.script_imports import require_packages
    from csrun.launch.user_command import UserCommand

    script = tmp_path / "run.py"
    script.write_text("from cerebras.tf.cs_estimator import CerebrasEstimator\n")
    require_packages(UserCommand(("python", str(script))))
