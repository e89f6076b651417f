"""Model functions that csrun cannot compile: named with the line that made the operator."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tf_models import (
    CSEstimatorSpec,
    CSRunConfig,
    batches,
    classifier,
    cross_entropy,
    ignore_warnings,
    tf,
    trained,
    v1,
    weights,
)

from csrun.base.errors import UsageError

moving_averages = pytest.importorskip("tensorflow.python.training.moving_averages")
pytestmark = ignore_warnings
HERE = re.escape(__file__)


def dense(features):
    return v1.layers.dense(features, 10)


def minimized(loss, mode="train", **options):
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, **options)


def operator_without_form(features, labels, mode, params):
    return minimized(tf.reduce_sum(tf.linalg.det(tf.reshape(dense(features), [-1, 2, 2]))))


def placeholder_of_its_own(features, labels, mode, params):
    scale = v1.placeholder(tf.float32, [])
    return minimized(cross_entropy(dense(features) * scale, labels))


def shapes_by_values(features, labels, mode, params):
    kept = tf.boolean_mask(dense(features), labels > 3)
    return minimized(tf.reduce_mean(kept))


def two_losses(features, labels, mode, params):
    logits = dense(features)
    first, second = cross_entropy(logits, labels), tf.reduce_mean(logits)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = tf.group(optimizer.minimize(first), optimizer.minimize(second))
    return CSEstimatorSpec(mode, loss=first, train_op=train_op)


def edited_gradient(features, labels, mode, params):
    loss = cross_entropy(dense(features), labels)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    pairs = [(tf.sign(g), v) for g, v in optimizer.compute_gradients(loss)]
    return CSEstimatorSpec(mode, loss=loss, train_op=optimizer.apply_gradients(pairs))


def stopped(features, labels, mode, params):
    return minimized(cross_entropy(tf.stop_gradient(dense(features)) * dense(features), labels))


def stopped_shift(compute):
    """A maximum without a gradient, which is not that of the exponentials of the logarithm."""

    def model_fn(features, labels, mode, params):
        rows = dense(features)
        return minimized(tf.reduce_mean(compute(rows, tf.stop_gradient(tf.reduce_max(rows)))))

    return model_fn


def stopped_mean(compute):
    def model_fn(features, labels, mode, params):
        rows = dense(features)
        stopped = tf.stop_gradient(tf.reduce_mean(rows, 0, keepdims=True))
        return minimized(tf.reduce_mean(compute(rows, stopped)))

    return model_fn


def log_sum(x):
    return tf.math.log(tf.reduce_sum(tf.exp(x)))


STOPPED = {
    "log of more than the sum": stopped_shift(
        lambda x, m: tf.math.log(1.0 + tf.reduce_sum(tf.exp(x - m))) + m
    ),
    "other log": stopped_shift(lambda x, m: tf.exp(x - m) + (tf.math.log(1.0 + x * x) + m)),
    "twice": stopped_shift(lambda x, m: x * (m + m)),
    "sum is read": stopped_shift(lambda x, m: (log_sum(x - m) + m) * tf.exp(x - m)),
    "one per element": stopped_mean(lambda x, m: tf.reduce_sum(x * log_sum(x - m) + m)),
    "other variance": stopped_mean(lambda x, m: tf.math.squared_difference(x + 1.0, m)),
    "other axes": stopped_mean(lambda x, m: tf.reduce_max(tf.math.squared_difference(x, m), 1)),
    "one per column": stopped_mean(
        lambda x, m: tf.math.log(tf.reduce_sum(tf.exp(x - m), 1, keepdims=True)) + m
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_gradient_that_is_not_zero_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=rf"{HERE}:\d+: .*tf.stop_gradient .*of a value that"):
        trained(STOPPED[name], tmp_path, batches(1))


def rate_of_a_placeholder(features, labels, mode, params):
    loss = cross_entropy(dense(features), labels)
    optimizer = v1.train.GradientDescentOptimizer(0.1 * tf.reduce_mean(features))
    return CSEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def updated_in_a_branch(features, labels, mode, params):
    spec = minimized(cross_entropy(dense(features), labels))
    changing = tf.equal(v1.train.get_or_create_global_step() % 2, 0)
    train_op = tf.cond(changing, lambda: minimized(spec.loss).train_op, tf.no_op)
    return CSEstimatorSpec(mode, loss=spec.loss, train_op=train_op)


def branch_by_the_step(features, labels, mode, params):
    is_late = tf.greater(v1.train.get_or_create_global_step(), 5)
    logits = tf.cond(is_late, lambda: dense(features), lambda: dense(features))
    return minimized(cross_entropy(logits, labels))


def branch_that_writes(features, labels, mode, params):
    logits, mean = dense(features), tf.reduce_mean(features)
    count = tf.Variable(0.0, trainable=False)
    written = tf.cond(mean > 0, lambda: count.assign_add(1.0).read_value(), lambda: 0.0)
    return minimized(cross_entropy(logits + written, labels))


def branches_of_two_shapes(features, labels, mode, params):
    logits, mean = dense(features), tf.reduce_mean(features)
    logits = tf.cond(mean > 0, lambda: logits, lambda: logits[:, :1])
    return minimized(cross_entropy(logits, labels))


def rate_that_reads_the_batch(features, labels, mode, params):
    loss = cross_entropy(dense(features), labels)
    optimizer = v1.train.GradientDescentOptimizer(lambda: 0.1 * tf.reduce_mean(features))
    return CSEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def read_after_its_assignment(features, labels, mode, params):
    logits = dense(features)
    center = tf.Variable(tf.zeros([10]), trainable=False)
    with tf.control_dependencies([center.assign(tf.reduce_mean(logits, 0))]):
        return minimized(cross_entropy(logits - center.read_value(), labels))


def averages_of_weights(features, labels, mode, params):
    spec = minimized(cross_entropy(dense(features), labels))
    with tf.control_dependencies([spec.train_op]):
        averages = tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
    return CSEstimatorSpec(mode, loss=spec.loss, train_op=averages)


def loop_over_steps(features, labels, mode, params):
    cell, rows = v1.nn.rnn_cell.GRUCell(8), tf.reshape(features, [-1, 4, 5])
    most = tf.reduce_max(labels % 5)
    add = lambda n, x: (n + 1, cell(rows[:, 0], x)[0])  # noqa: E731
    _, found = tf.while_loop(lambda n, x: n < most, add, [0, tf.zeros([16, 8])])
    return minimized(cross_entropy(dense(found), labels))


def loop_without_gradients(features, labels, mode, params):
    rows = dense(features)
    options = {"back_prop": False}
    twice = v1.while_loop(lambda n, x: n < 2, lambda n, x: (n + 1, 2.0 * x), [0, rows], **options)
    return minimized(cross_entropy(rows + twice[1], labels))


def mapped_without_gradients(features, labels, mode, params):
    rows = dense(features)
    return minimized(cross_entropy(v1.map_fn(lambda r: 2.0 * r, rows, back_prop=False), labels))


def written_outside(features, labels, mode, params):
    rows = tf.TensorArray(tf.float32, 2).write(0, dense(features)).write(2, features[:, :10])
    return minimized(cross_entropy(rows.read(0), labels) + tf.reduce_mean(rows.stack()))


def column_of_a_category(features, labels, mode, params):
    kind = tf.feature_column.categorical_column_with_hash_bucket("kind", 4, tf.int32)
    columns = [tf.feature_column.embedding_column(kind, 3)]
    found = v1.feature_column.input_layer({"kind": labels[:, None] % 4}, columns)
    return minimized(cross_entropy(dense(found), labels))


def average_without_bias(features, labels, mode, params):
    spec = minimized(cross_entropy(dense(features), labels))
    mean = v1.get_variable("mean", [20], trainable=False)
    update = moving_averages.assign_moving_average(
        mean, tf.reduce_mean(features, 0), 0.9, zero_debias=True
    )
    return CSEstimatorSpec(mode, loss=spec.loss, train_op=tf.group(spec.train_op, update))


LINES = range(dense.__code__.co_firstlineno, 1000)  # of the models
REFUSED = {
    operator_without_form: "TensorFlow operator MatrixDeterminant .*: it has no CIRH form",
    placeholder_of_its_own: "Placeholder .*: the input_fn does not give this placeholder",
    shapes_by_values: "TensorFlow operator Where .*: its shape depends on values",
    loop_over_steps: "TensorFlow operator While .*: it has no CIRH form: the batch determ",
    loop_without_gradients: r"StopGradient .*: tf.stop_gradient \(or back_prop=False\) of a value",
    mapped_without_gradients: r"StopGradient .*: tf.stop_gradient \(or back_prop=False\) of a v",
    written_outside: "index 2 is outside the TensorArray of size 2: give it a larger size",
    column_of_a_category: "operator (AsString|StringToHash).*: it has no CIRH form: strings, and",
    two_losses: "gradients are asked of 2 losses",
    edited_gradient: "Sign .*: the gradient of dense/kernel is changed in a way",
    stopped: r"tf.stop_gradient \(or back_prop=False\) of a value that weights are trained through",
    updated_in_a_branch: "If .*: train_op depends on a predicate that changes",
    branch_by_the_step: "If .*: the predicate of this tf.cond changes, and not by the batch",
    branch_that_writes: "AssignAddVariableOp .*: a branch of tf.cond writes a variable, and csrun",
    branches_of_two_shapes: r"the branches of tf.cond have the shapes \(16, 10\) and \(16, 1\)",
    rate_that_reads_the_batch: "this learning rate reads input/features, and may depend on global",
    read_after_its_assignment: "ReadVariableOp .*: the loss reads Variable after its assignment",
    averages_of_weights: "train_op changes dense/.*/ExponentialMovingAverage, which is neither",
    average_without_bias: r"train_op changes mean\S*/local_step, which is neither",
    rate_of_a_placeholder: "this learning rate reads input/features, and may depend on global_step",
}


@pytest.mark.parametrize("model_fn", REFUSED, ids=lambda model_fn: model_fn.__name__)
def test_a_model_is_refused_with_its_line(model_fn, tmp_path):
    with pytest.raises(UsageError, match=REFUSED[model_fn]) as error:
        trained(model_fn, tmp_path, batches(1))
    first = model_fn.__code__.co_firstlineno
    lines = [int(n) for n in re.findall(rf"{HERE}:(\d+)", str(error.value))]
    assert any(LINES.start <= line <= first + 12 for line in lines), error.value


def test_an_optimizer_without_a_rule_is_refused(tmp_path):
    make = lambda: v1.train.FtrlOptimizer(0.1)  # noqa: E731
    with pytest.raises(UsageError, match="this optimizer is not supported: use one of Adadelta"):
        trained(classifier(make), tmp_path, batches(1))


class AdamWOptimizer(v1.train.Optimizer):
    """AdamW as BERT's code has it, whose decay an edit doubles."""

    def __init__(self, decay_factor):
        super().__init__(False, "AdamW")
        self.learning_rate, self.weight_decay_rate = 0.01, 0.1
        self.beta1, self.beta2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay = ["bias"]
        self._factor = decay_factor

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m = self.beta1 * m + (1 - self.beta1) * grad
        next_v = self.beta2 * v + (1 - self.beta2) * grad * grad
        update = next_m / (tf.sqrt(next_v) + self.epsilon)
        if "bias" not in var.name:
            update += self._factor * self.weight_decay_rate * var
        next_var = var - self.learning_rate * update
        return tf.group(var.assign(next_var), m.assign(next_m), v.assign(next_v))


def test_an_edited_class_is_refused_with_the_difference(tmp_path):
    with pytest.raises(UsageError, match=r"its step of dense_?1?/kernel is not that of AdamW, by"):
        trained(classifier(lambda: AdamWOptimizer(2.0)), tmp_path, batches(1))


def test_an_unchanged_class_trains_as_in_a_session(tmp_path):
    from support.tf_models import assert_as_in_session

    make = lambda: AdamWOptimizer(1.0)  # noqa: E731
    assert_as_in_session(classifier(make), tmp_path, batches(), tolerance=2e-6)


class LAMBOptimizer(v1.train.Optimizer):
    """LAMB with the names of BERT's code. power: of the ratio of norms."""

    def __init__(self, power=1.0):
        super().__init__(False, "LAMB")
        self.learning_rate, self.weight_decay_rate = 0.01, 0.1
        self.beta_1, self.beta_2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay, self._power = ["bias"], power

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        next_m = self.beta_1 * m + (1 - self.beta_1) * grad
        next_v = self.beta_2 * v + (1 - self.beta_2) * tf.square(grad)
        update = next_m / (tf.sqrt(next_v) + self.epsilon)
        if "bias" not in var.name:
            update += self.weight_decay_rate * var
        w_norm, g_norm = tf.norm(var), tf.norm(update)
        by_norms = tf.where(g_norm > 0, w_norm / g_norm, 1.0)
        ratio = tf.where(w_norm > 0, by_norms**self._power, 1.0)
        next_var = var - ratio * self.learning_rate * update
        return tf.group(var.assign(next_var), m.assign(next_m), v.assign(next_v))


def test_lamb_of_a_script_trains_as_in_a_session(tmp_path):
    from support.tf_models import assert_as_in_session

    assert_as_in_session(classifier(LAMBOptimizer), tmp_path, batches(), tolerance=2e-6)


def test_an_edited_lamb_is_refused_with_the_difference(tmp_path):
    with pytest.raises(UsageError, match=r"its step of dense\w*/\w+ is not that of Lamb, by"):
        trained(classifier(lambda: LAMBOptimizer(0.5)), tmp_path, batches(1))


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
