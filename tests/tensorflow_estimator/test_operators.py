"""Operators of a graph: forward and backward as in tf.compat.v1.Session."""

import numpy as np
import pytest
from support.tf_models import (
    BATCH,
    CSEstimatorSpec,
    assert_as_in_session,
    ignore_warnings,
    tf,
    v1,
)

pytestmark = ignore_warnings
SIDE, CHANNELS = 7, 4


def weight(name, shape):
    return v1.get_variable(f"layer/{name}", shape, initializer=v1.glorot_uniform_initializer(3))


def convolved(padding, strides=1):
    def apply(x):
        return tf.nn.conv2d(x, weight("kernel", [3, 2, CHANNELS, 8]), strides, padding)

    return apply


def convolved_by_numbers(channels, **options):
    """Convolution whose kernel is not trained, as TensorFlow has no such gradient on a CPU."""
    kernel = np.random.default_rng(1).standard_normal((3, 2, channels, 8)).astype(np.float32)

    def apply(x):
        return tf.nn.conv2d(x, kernel, padding="SAME", **options) * weight("scale", [8])

    return apply


def pooled(function, size, strides, padding):
    def apply(x):
        return function(x * weight("scale", [1, SIDE, SIDE, CHANNELS]), size, strides, padding)

    return apply


def product(equation, shape, like=None):
    def apply(x):
        value = x if like is None else tf.reshape(x, like)
        return tf.einsum(equation, value, weight("kernel", shape))

    return apply


def depthwise(x):
    return tf.nn.depthwise_conv2d(x, weight("kernel", [3, 3, CHANNELS, 2]), [1, 2, 2, 1], "SAME")


def self_product(x):
    rows = tf.reshape(x, [BATCH, SIDE * SIDE, CHANNELS])
    scaled = rows * weight("scale", [SIDE * SIDE, CHANNELS])
    return tf.einsum("bqc,bkc->bqk", scaled, rows)


def branches(x):
    is_wide = tf.greater(tf.shape(x)[2], 3)
    scaled = x * weight("scale", [CHANNELS])
    return tf.cond(is_wide, lambda: tf.nn.relu(scaled), lambda: v1.Print(scaled, [scaled]))


MODELS = {
    "conv_valid": convolved("VALID"),
    "conv_same": convolved("SAME"),
    "conv_same_strided": convolved("SAME", strides=[2, 3]),
    "conv_dilated": convolved_by_numbers(CHANNELS, strides=1, dilations=2),
    "conv_explicit": convolved([[0, 0], [1, 0], [2, 1], [0, 0]]),
    "conv_groups": convolved_by_numbers(2, strides=1),
    "depthwise": depthwise,
    "max_pool": pooled(tf.nn.max_pool2d, 2, 2, "VALID"),
    "max_pool_same": pooled(tf.nn.max_pool2d, 3, 2, "SAME"),
    "max_pool_uneven": pooled(tf.nn.max_pool2d, 2, 2, "SAME"),
    "avg_pool": pooled(tf.nn.avg_pool2d, 3, 1, "VALID"),
    "avg_pool_same": pooled(tf.nn.avg_pool2d, 3, 2, "SAME"),
    "avg_pool_uneven": pooled(tf.nn.avg_pool2d, 2, 2, "SAME"),
    "einsum_dense": product("bhwc,cd->bhwd", [CHANNELS, 6]),
    "einsum_heads": product("bhwc,cnd->bnhwd", [CHANNELS, 3, 5]),
    "einsum_per_row": product("bhwc,hcd->bhd", [SIDE, CHANNELS, 5]),
    "einsum_batch": self_product,
    "cond": branches,
}


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_a_session(name, tmp_path):
    def model_fn(features, labels, mode, params):
        out = MODELS[name](features)
        loss = tf.reduce_mean(tf.square(tf.tanh(out) - 0.3)) * labels.shape[0]
        train_op = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, BATCH, SIDE, SIDE, CHANNELS)).astype(np.float32)
    assert_as_in_session(model_fn, tmp_path, [(each, np.zeros(BATCH, np.int32)) for each in x])


def test_an_einsum_that_repeats_a_label_is_refused(tmp_path):
    from csrun.base.errors import UsageError

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(tf.einsum("bhhc->b", features) * weight("scale", [1]))
        train_op = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    x = np.ones((BATCH, SIDE, SIDE, CHANNELS), np.float32)
    with pytest.raises(UsageError, match="each label once in an operand"):
        assert_as_in_session(model_fn, tmp_path, [(x, np.zeros(BATCH, np.int32))])
