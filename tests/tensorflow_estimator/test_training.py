"""Training of TensorFlow model functions, compared with tf.compat.v1.Session."""

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.fc_mnist import scalars
from support.tf_models import (
    BATCH,
    CLASSES,
    CerebrasEstimator,
    CSEstimatorSpec,
    CSRunConfig,
    assert_as_in_session,
    batches,
    classifier,
    cross_entropy,
    distance,
    ignore_warnings,
    in_session,
    tf,
    trained,
    v1,
    weights,
)

from csrun.base.errors import UsageError
from csrun.data import DataError, Dataset
from csrun.tensorflow import joined_batches

control_flow_util = pytest.importorskip("tensorflow.python.ops.control_flow_util")
pytestmark = ignore_warnings


REPORTED = {
    "multiple": lambda mean, logits: BATCH * mean,
    "with a term": lambda mean, logits: mean + 0.1 * tf.reduce_mean(tf.square(logits)),
    "another": lambda mean, logits: tf.reduce_sum(tf.abs(logits)),
    "without a gradient": lambda mean, logits: tf.stop_gradient(2.0 * mean),
}


@pytest.mark.parametrize("name", REPORTED)
def test_another_loss_than_the_minimized_one_is_reported(name, tmp_path, caplog):
    def model_fn(features, labels, mode, params):
        logits = v1.layers.dense(features, CLASSES, activation=tf.tanh)
        mean = cross_entropy(logits, labels)
        v1.summary.scalar("minimized_loss", mean)  # beside csrun's
        train_op = v1.train.GradientDescentOptimizer(0.5).minimize(mean)
        return CSEstimatorSpec(mode, loss=REPORTED[name](mean, logits), train_op=train_op)

    data = batches(3)
    with caplog.at_level("INFO", "csrun"):
        assert_as_in_session(model_fn, tmp_path, data)
    losses, _ = in_session(model_fn, weights(tmp_path, 0), data)
    found = [float(n) for n in re.findall(r"Loss=([\d.]+)", caplog.text)]
    assert found == pytest.approx(losses, rel=1e-5)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    values = [item for _, each in scalars(events) for item in each.items()]
    ours, script = ([v for name, v in values if name == f"minimized_loss{n}"] for n in ("_1", ""))
    assert ours == script != []


def of_rows(make_optimizer, clip=lambda gradients: gradients):
    """Model that looks up rows of a table; each batch has some rows, some of them twice."""

    def model_fn(features, labels, mode, params):
        table = v1.get_variable("layer/table", [8, CLASSES])
        loss = cross_entropy(tf.nn.embedding_lookup(table, features), labels)
        optimizer, step = make_optimizer(), v1.train.get_or_create_global_step()
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        train_op = optimizer.apply_gradients(zip(clip(gradients), variables, strict=True), step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def row_batches():
    """Batches of features from one half of the table, then from the other."""
    rng = np.random.default_rng(0)
    for number in range(3):
        ids = rng.integers(0, 4, 16) + 4 * (number % 2)
        yield ids.astype(np.int32), rng.integers(0, CLASSES, 16).astype(np.int32)


@pytest.mark.parametrize(
    ("make_optimizer", "clip", "words"),
    [
        (lambda: v1.train.MomentumOptimizer(0.5, 0.9), None, "all rows of layer/table are updated"),
        (lambda: v1.train.RMSPropOptimizer(0.1), None, "all rows of layer/table are updated"),
        (
            lambda: v1.train.GradientDescentOptimizer(0.5),
            lambda gradients: tf.clip_by_global_norm(gradients, 0.01)[0],
            "gradients of layer/table are clipped by the norm of their rows' sums",
        ),
    ],
    ids=["momentum", "rmsprop", "clipping"],
)
def test_updates_of_tables_that_tensorflow_makes_by_row_are_named(
    make_optimizer, clip, words, tmp_path, caplog
):
    data, model_fn = [*row_batches()], of_rows(make_optimizer, *([clip] if clip else []))
    trained(model_fn, tmp_path, data)
    assert words in caplog.text
    first, last = weights(tmp_path, 0), weights(tmp_path, len(data))
    _, by_row = in_session(model_fn, first, data)
    assert distance(last, by_row) > 1e-4  # so that the warning is not superfluous
    table = np.float64(first["layer/table"])
    if clip:  # by the formula
        for ids, labels in data:
            p = np.exp(table[ids])
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(ids)), labels] -= 1
            gradient = np.zeros_like(table)
            np.add.at(gradient, ids, p / len(ids))
            table -= 0.5 * gradient * 0.01 / (np.linalg.norm(gradient) + 1e-6)
        np.testing.assert_allclose(last["layer/table"], table, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make_optimizer", [v1.train.AdamOptimizer, v1.train.AdagradOptimizer])
def test_updates_of_tables_that_are_the_same_by_row_are_not_named(make_optimizer, tmp_path, caplog):
    model_fn = of_rows(lambda: make_optimizer(0.1))
    assert_as_in_session(model_fn, tmp_path, [*row_batches()], tolerance=3e-6)
    assert "layer/table" not in caplog.text


def clipped(clip):
    """Model that clips gradients of tf.gradients."""

    def model_fn(features, labels, mode, params):
        logits = v1.layers.dense(v1.layers.dense(features, 32, activation=tf.nn.tanh), CLASSES)
        loss = 5.0 * cross_entropy(logits, labels)
        variables = v1.trainable_variables()
        gradients = clip(tf.gradients(loss, variables))
        optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
        step = v1.train.get_or_create_global_step()
        train_op = optimizer.apply_gradients(list(zip(gradients, variables, strict=True)), step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


CLIPS = {
    "norm": lambda gradients: tf.clip_by_global_norm(gradients, 0.7)[0],
    "each norm": lambda gradients: [tf.clip_by_norm(each, 0.2) for each in gradients],
    "value": lambda gradients: [tf.clip_by_value(each, -0.02, 0.02) for each in gradients],
}


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(1e-2, beta1=0.8, epsilon=1e-6),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(1.0, rho=0.8, epsilon=1e-4),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(1e-2, decay=0.8, epsilon=1e-3),
    "centered": lambda: v1.train.RMSPropOptimizer(
        v1.train.exponential_decay(1e-2, v1.train.get_or_create_global_step(), 5, 0.5),
        momentum=0.9,
        centered=True,
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_20_steps_are_those_of_a_session(name, tmp_path):
    assert_as_in_session(classifier(OPTIMIZERS[name]), tmp_path, batches())


def convolved(features):
    x = v1.layers.conv2d(tf.reshape(features, [-1, 5, 4, 1]), 4, 3, activation=tf.nn.relu)
    return v1.layers.flatten(v1.layers.average_pooling2d(x, 2, 1))


def looked_up(features):
    ids = tf.cast(tf.abs(features) * 7, tf.int32) % 11
    cell = v1.nn.rnn_cell.BasicLSTMCell(8)
    found = tf.nn.embedding_lookup(v1.get_variable("table", [11, 6]), ids)
    return v1.nn.static_rnn(cell, tf.unstack(found[:, :5], axis=1), dtype=tf.float32)[0][-1]


def recurrent(features):
    """Loops over time steps: of a cell, of a Keras layer, and of functions."""
    rows = tf.reshape(features[:, :15], [-1, 3, 5])
    cell = v1.nn.rnn_cell.BasicLSTMCell(6)
    _, state = v1.nn.dynamic_rnn(cell, rows, dtype=tf.float32)
    layer = tf.keras.layers.GRU(3, return_sequences=True, go_backwards=True, name="gru")
    scaled = tf.map_fn(lambda row: tf.tanh(2.0 * row), layer(rows))
    powers = tf.while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * state.h), [0, state.c])[1]
    return tf.concat([powers, state.h, scaled[:, -1]], 1)


def recurrent_to_lengths(features):
    """Loops with a number of steps for each sample, in both directions."""
    rows, steps = tf.reshape(features, [-1, 4, 5]), tf.cast(tf.abs(features[:, 0]) * 3, tf.int32)
    cells, lengths = [v1.nn.rnn_cell.BasicRNNCell(n) for n in (3, 4)], tf.minimum(steps, 3)
    both, states = v1.nn.bidirectional_dynamic_rnn(*cells, rows, lengths, dtype=tf.float32)
    return tf.concat([*states, *(v1.layers.flatten(each) for each in both)], 1)


class Turn(NamedTuple):
    number: Any
    state: Any


def of_loop_variables(features):
    """Loops with nested named tuples as variables, and one without a gradient."""

    def turn(number, state):
        return number + 1, (state.number + number, tf.tanh(2.0 * state.state))

    first = Turn(0, Turn(0, v1.layers.dense(features, 6)))
    found = tf.while_loop(lambda number, state: number < 3, turn, first).state
    whole = v1.while_loop(lambda s: s.number < 2, lambda s: [Turn(s.number + 1, s.state)], [found])
    scaled = v1.map_fn(lambda row: 2.0 * row, features, back_prop=False)
    return whole[0].state * (tf.cast(found.number, tf.float32) + scaled[:, :1])


def written_beyond_its_size(features):
    """TensorArrays that grow on writes, and those of raw_rnn."""
    rows, grown = tf.reshape(features, [-1, 4, 5]), tf.TensorArray(tf.float32, 2, dynamic_size=True)
    cell = v1.nn.rnn_cell.BasicRNNCell(3)
    for number in range(4):
        grown = grown.write(number, tf.sin(rows[:, number]))

    def step(time, output, state, unused):
        state = cell.zero_state(BATCH, tf.float32) if output is None else state
        next_input = tf.transpose(rows, [1, 0, 2])[tf.minimum(time, 3)]
        return tf.fill([BATCH], time >= 4), next_input, state, output, None

    outputs = v1.nn.raw_rnn(cell, step)[0].stack()
    return tf.concat([tf.reduce_sum(grown.stack(), 0), tf.reduce_sum(outputs, 0)], 1)


def of_a_column(features):
    column = tf.feature_column.numeric_column("x", shape=[20])
    buckets = tf.feature_column.bucketized_column(column, [-1.0, 0.0, 0.5])
    return v1.feature_column.input_layer({"x": features}, [column, buckets])


@pytest.mark.parametrize(
    "layers",
    [
        convolved,
        looked_up,
        recurrent,
        recurrent_to_lengths,
        of_loop_variables,
        written_beyond_its_size,
        of_a_column,
    ],
)
def test_layers_of_tensorflow_1_train_as_in_a_session(layers, tmp_path):
    def model_fn(features, labels, mode, params):
        kernel_regularizer = lambda kernel: 0.01 * tf.nn.l2_loss(kernel)  # noqa: E731
        options = {"kernel_regularizer": kernel_regularizer, "name": "head"}
        logits = v1.layers.dense(layers(features), CLASSES, **options)
        v1.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = v1.losses.get_total_loss()
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    assert_as_in_session(model_fn, tmp_path, batches(6), tolerance=3e-6)


def test_a_script_may_disable_control_flow_v2(monkeypatch, tmp_path):
    """By disable_v2_behavior."""

    def model_fn(features, labels, mode, params):
        is_positive, turn = tf.reduce_mean(features) > 0, lambda: [tf.tanh(features)]
        x = v1.cond(is_positive, turn, lambda: [features])
        x += v1.cond(is_positive, turn, lambda: [features], strict=True)[0]
        x += tf.cond(is_positive, lambda: [features], turn)[0]
        x += v1.cond(tf.constant(True), turn, turn)
        x = tf.while_loop(lambda n, x: n < 2, lambda n, x: (n + 1, 2 * tf.sin(x)), [0, x])[1]
        loss = cross_entropy(v1.layers.dense(x, CLASSES), labels)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)
    assert_as_in_session(model_fn, tmp_path, batches(3))


@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped(name, tmp_path):
    assert_as_in_session(clipped(CLIPS[name]), tmp_path, batches(), tolerance=3e-6)


def decayed(rate):
    def make():
        return v1.train.GradientDescentOptimizer(rate(v1.train.get_or_create_global_step()))

    return classifier(make)


SCHEDULES = {
    "polynomial": lambda step: v1.train.polynomial_decay(0.2, step, 15, 0.01, power=2.0),
    "exponential": lambda step: v1.train.exponential_decay(0.2, step, 5, 0.5),
    "staircase": lambda step: v1.train.exponential_decay(0.2, step, 5, 0.5, staircase=True),
    "cosine": lambda step: v1.train.cosine_decay(0.2, step, 15, alpha=0.1),
    "piecewise": lambda step: v1.train.piecewise_constant(step, [4, 9], [0.2, 0.1, 0.05]),
    "joined": lambda step: tf.case(
        [(tf.less(step, 6), lambda: v1.train.polynomial_decay(0.0, step, 6, 0.2))],
        default=lambda: v1.train.polynomial_decay(0.2, step - 6, 10, 0.0),
    ),
    "own": lambda step: 0.2 / (1.0 + tf.cast(step, tf.float32)),
    "function": lambda step: lambda: v1.train.exponential_decay(0.2, step, 5, 0.5),
    "function of a number": lambda step: lambda: 0.1,
    "by a branch": lambda step: tf.cond(
        step < 6, lambda: 0.2, lambda: 0.1 / tf.cast(step, "float")
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_are_those_of_the_graph(name, tmp_path):
    assert_as_in_session(decayed(SCHEDULES[name]), tmp_path, batches())


def accumulating(features, labels, mode, params):
    """Model with params of the Model Zoo; outside of csrun it accumulates with TensorFlow."""
    count = params["optimizer"]["grad_accum_steps"]
    logits = v1.layers.dense(v1.layers.dense(features["x"], 32, activation=tf.nn.tanh), CLASSES)
    loss = cross_entropy(logits, labels)
    if mode == "eval":
        return CSEstimatorSpec(mode, loss=loss)
    optimizer, variables = v1.train.AdamOptimizer(1e-2), v1.trainable_variables()
    step = v1.train.get_or_create_global_step()
    if count == 1:
        return CSEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
    gradients = zip(sums, tf.gradients(loss, variables), strict=True)
    added = [s.assign_add(g / count) for s, g in gradients]
    number = tf.Variable(0, trainable=False).assign_add(1)

    def update():
        with tf.control_dependencies(added):
            pairs = zip(map(tf.identity, sums), variables, strict=True)
            applied = optimizer.apply_gradients(list(pairs))
        with tf.control_dependencies([applied]):
            return tf.group([s.assign(tf.zeros_like(s)) for s in sums])

    train_op = tf.cond(tf.equal(number % count, 0), update, lambda: tf.group(added))
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def test_gradients_are_accumulated_as_the_params_say(tmp_path):
    params = {"optimizer": {"grad_accum_steps": 3}}
    data = [({"x": x}, y) for x, y in batches(7)]
    config = CSRunConfig(log_step_count_steps=1)
    estimator = CerebrasEstimator(accumulating, tmp_path, config=config, params=params)
    for _ in range(2):  # the second one resumes
        estimator.train(lambda: data, steps=1)
    first, last = weights(tmp_path, 0), weights(tmp_path, 2)
    _, wanted = in_session(accumulating, first, data[:6], params)
    assert distance(last, wanted) <= 2e-6 < distance(first, wanted)
    assert params["optimizer"]["grad_accum_steps"] == 3


def test_a_number_of_accumulated_batches_is_positive(tmp_path):
    params = {"optimizer": {"grad_accum_steps": 0}}
    with pytest.raises(UsageError, match=r"optimizer\.grad_accum_steps must be an integer >= 1"):
        CerebrasEstimator(accumulating, tmp_path, params=params).train(lambda: batches(1), steps=1)


JOINED = {
    r"grad_accum_steps=2: labels of batch 3 has shape \(4, 5\), that of batch 2 \(4, 3\)": [3] * 3
    + [5],
    r"grad_accum_steps=2: labels of batch 0 has shape \(\), without samples": [None] * 2,
    "grad_accum_steps=2: the data set has only 1 batches: give it more": [3],
}


@pytest.mark.parametrize("message", JOINED)
def test_batches_that_cannot_be_joined_are_named(message):
    widths = JOINED[message]
    data = [(np.ones((4, 2)), np.ones(() if n is None else (4, n))) for n in widths]
    make = joined_batches.joined(lambda params: Dataset.from_batches(data), 2)
    with pytest.raises(DataError, match=message):
        list(make(None).batches())


def test_dropout_drops_the_share_and_keeps_the_mean(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = v1.get_variable("scale/weight", [], initializer=v1.ones_initializer())
        dropped = tf.nn.dropout(features * weight, rate=0.25)
        v1.summary.scalar("share", tf.reduce_mean(tf.cast(tf.equal(dropped, 0.0), tf.float32)))
        loss = tf.reduce_mean(dropped) + 0.0 * tf.reduce_mean(tf.cast(labels, tf.float32))
        train_op = v1.train.GradientDescentOptimizer(0.0).minimize(loss)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    ones = [(np.ones((64, 400), np.float32), np.zeros(64, np.int32))] * 5
    results = trained(model_fn, tmp_path, ones).evaluate(lambda: ones)
    assert results["loss"] == pytest.approx(1.0, abs=0.02)
