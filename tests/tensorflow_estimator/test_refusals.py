"""Model functions that csrun cannot compile: refused with the line that made the operator."""

import re

import pytest
from support.tf_models import (
    CSEstimatorSpec,
    batches,
    cross_entropy,
    ignore_warnings,
    tf,
    trained,
    v1,
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
    """Log-sum-exp whose maximum has no gradient, and which subtracts another value."""

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
    two_losses: "gradients of 2 losses are requested",
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
