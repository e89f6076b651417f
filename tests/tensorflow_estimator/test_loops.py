"""Loops that the batch ends, bounded by maximum_iterations, as in tf.compat.v1.Session."""

import re

import pytest
from support.tf_models import (
    CLASSES,
    CSEstimatorSpec,
    assert_as_in_session,
    batches,
    cross_entropy,
    ignore_warnings,
    tf,
    trained,
    v1,
)

from csrun.base.errors import UsageError

pytestmark = ignore_warnings
HERE = re.escape(__file__)


def model_of(loop):
    def model_fn(features, labels, mode, params):
        hidden = loop(v1.layers.dense(features, 8), tf.reduce_max(labels % 4))
        loss = cross_entropy(v1.layers.dense(hidden, CLASSES), labels)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def weight():
    return v1.get_variable("layer/kernel", [8, 8], initializer=v1.glorot_uniform_initializer(3))


def counted(x, count):
    """Until a count of the batch; the values depend on the number of the iteration."""
    kernel = weight()

    def body(n, x):
        return n + 1, tf.tanh(x @ kernel) + x * tf.cast(n, tf.float32)

    _, found = tf.while_loop(lambda n, x: n < count, body, [0, x], maximum_iterations=3)
    return found


def by_value(x, count):
    """Until a norm of the values is small."""
    kernel = weight()
    found = tf.while_loop(
        lambda x: tf.norm(x) > 12.0,
        lambda x: 0.5 * x + 0.1 * (x @ kernel),
        [x],
        maximum_iterations=6,
    )
    return found[0]


def returned_count(x, count):
    """The count of iterations, as a value of the loss."""
    kernel = weight()
    n, found = tf.while_loop(
        lambda n, x: n < count, lambda n, x: (n + 1, x @ kernel), [0, x], maximum_iterations=3
    )
    return found * tf.cast(n, tf.float32)


def logarithms(x, count):
    """Until a value has no logarithm."""
    kernel = weight()
    y = 4.0 + tf.nn.sigmoid(x @ kernel)
    found = tf.while_loop(
        lambda x: tf.reduce_min(x) > 0.1,
        lambda x: tf.math.log(x) * (1.0 + 0.01 * tf.reduce_sum(kernel)),
        [y],
        maximum_iterations=6,
    )
    return found[0]


@pytest.mark.parametrize("loop", [counted, by_value, returned_count, logarithms])
def test_a_loop_that_the_batch_ends(loop, tmp_path):
    data = batches()
    for number, (_, labels) in enumerate(data):
        labels %= 1 + number % 4  # some batches end the loop at once
    assert_as_in_session(model_of(loop), tmp_path, data)


def growing(x, count):
    _, found = tf.while_loop(
        lambda n, x: n < count,
        lambda n, x: (n + 1, tf.concat([x, x], 1)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
        maximum_iterations=2,
    )
    return found[:, :8]


def without_a_bound(x, count):
    _, found = tf.while_loop(lambda n, x: n < count, lambda n, x: (n + 1, 2.0 * x), [0, x])
    return found


REFUSED = {
    growing: r"a loop that the batch ends changes a shape from \(16, 8\) to \(16, 16\): give its",
    without_a_bound: "the batch determines how often this loop runs: give tf.while_loop maximum_it",
}


@pytest.mark.parametrize("loop", REFUSED)
def test_another_loop_is_refused_with_its_line(loop, tmp_path):
    with pytest.raises(UsageError, match=rf"{HERE}:\d+: .*{REFUSED[loop]}"):
        trained(model_of(loop), tmp_path, batches(1))
