"""Loops of constant or data-dependent length, and tf.function, as in a Session."""

import re

import pytest
from support.tf_models import (
    BATCH,
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
    with v1.variable_scope("layer", reuse=v1.AUTO_REUSE):
        return v1.get_variable("kernel", [8, 8], initializer=v1.glorot_uniform_initializer(3))


def cell(x, y):
    return tf.tanh(x @ weight() + y)


def rows_of(x):
    """Features as four time steps. Shapes: x [B, 8] -> [4, B, 8]"""
    steps = tf.transpose(tf.reshape(x, [BATCH, 4, 2]), [1, 0, 2])
    return tf.pad(steps, [[0, 0], [0, 0], [0, 6]])


def until_a_shape(x, count):
    """As many iterations as features, counted by a tensor."""
    length = tf.shape(x)[1] // 2
    return tf.while_loop(lambda n, x: n < length, lambda n, x: (n + 1, cell(x, 0)), [0, x])[1]


def until_a_float(x, count):
    return tf.while_loop(lambda t, x: t < 0.55, lambda t, x: (t + 0.1, cell(x, t)), [0.0, x])[1]


def until_a_flag(x, count):
    found = tf.while_loop(
        lambda done, n, x: tf.logical_not(done),
        lambda done, n, x: (n > 2, 2 * n, cell(x, 0)),
        [tf.constant(False), 1, x],
    )
    return found[2]


def arrays_of_steps(x, count):
    """TensorArrays whose size is a dimension of a shape."""
    steps = rows_of(x)
    length = tf.shape(steps)[0]
    given = tf.TensorArray(tf.float32, length).unstack(steps)

    def body(n, state, found):
        state = cell(state, given.read(n))
        return n + 1, state, found.write(n, state)

    first = [0, tf.zeros_like(x), tf.TensorArray(tf.float32, length)]
    return tf.reduce_mean(tf.while_loop(lambda n, *_: n < length, body, first)[2].stack(), 0)


def scanned(x, count):
    forward = tf.scan(cell, rows_of(x), tf.zeros_like(x))
    backward = tf.scan(cell, rows_of(x), tf.zeros_like(x), reverse=True)
    return forward[-1] + backward[0] + tf.foldr(cell, rows_of(x), x)


@pytest.mark.parametrize(
    "loop", [until_a_shape, until_a_float, until_a_flag, arrays_of_steps, scanned]
)
def test_a_loop_of_constant_length_needs_no_bound(loop, tmp_path):
    assert_as_in_session(model_of(loop), tmp_path, batches(4))


class Repeated(tf.Module):
    """Recurrent cell called through a tf.function."""

    def __init__(self):
        super().__init__()
        self.scale = None

    @tf.function
    def __call__(self, x, kernel, power):
        """A Python loop, a loop over a tensor, a branch by the batch, and a variable."""
        if self.scale is None:
            self.scale = tf.Variable(0.9)  # which TensorFlow does not train, made here
        for _ in range(power):
            x = self.scale * x
        for n in tf.range(10):
            x = tf.tanh(x @ kernel + tf.cast(n, tf.float32))
            if n >= tf.shape(x)[1] // 4:
                break
        if tf.reduce_sum(x) > 0:
            x = x * 0.5
        return x


def functions(x, count):
    kernel = weight()
    doubled = tf.function(lambda x: tf.foldl(tf.add, tf.stack([x, x])), autograph=False)
    return Repeated()(doubled(x), kernel, power=2)


def test_a_function_is_part_of_the_graph(tmp_path):
    assert_as_in_session(model_of(functions), tmp_path, batches(4))


def counted(x, count):
    """Iterations up to a number in the batch; values depend on the iteration's number."""
    kernel = weight()

    def body(n, x):
        return n + 1, tf.tanh(x @ kernel) + x * tf.cast(n, tf.float32)

    _, found = tf.while_loop(lambda n, x: n < count, body, [0, x], maximum_iterations=3)
    return found


def by_value(x, count):
    """Iterations until a norm is small."""
    kernel = weight()
    found = tf.while_loop(
        lambda x: tf.norm(x) > 12.0,
        lambda x: 0.5 * x + 0.1 * (x @ kernel),
        [x],
        maximum_iterations=6,
    )
    return found[0]


def returned_count(x, count):
    """Number of iterations as a factor of the loss."""
    kernel = weight()
    n, found = tf.while_loop(
        lambda n, x: n < count, lambda n, x: (n + 1, x @ kernel), [0, x], maximum_iterations=3
    )
    return found * tf.cast(n, tf.float32)


def logarithms(x, count):
    """Iterations until a value has no logarithm."""
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
