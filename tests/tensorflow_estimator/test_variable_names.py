"""Variables whose names csrun's compiler also uses for values, as in a Session."""

import pytest
from support.tf_models import (
    CLASSES,
    CSEstimatorSpec,
    assert_as_in_session,
    batches,
    cross_entropy,
    ignore_warnings,
    tf,
    v1,
)

pytestmark = ignore_warnings


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ("input", "kernel"),
        ("gradient", "kernel"),
        ("layer", "mm"),
        ("gradient/layer", "mm"),
        ("layer", "relu"),
    ],
)
def test_names_of_weights_and_values_are_apart(scope, name, tmp_path):
    def model_fn(features, labels, mode, params):
        with v1.variable_scope(scope):
            first = v1.get_variable(name, [20, 8], initializer=v1.glorot_uniform_initializer(3))
            last = v1.get_variable(
                f"{name}_1", [8, 8], initializer=v1.glorot_uniform_initializer(4)
            )
            hidden = tf.nn.relu(features @ first) @ last
        loss = cross_entropy(v1.layers.dense(hidden, CLASSES), labels)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    assert_as_in_session(model_fn, tmp_path, batches(4))


def test_a_table_called_embedding(tmp_path):
    """In a scope whose lookup is an operator of the same name."""
    data = [((abs(x) * 100).astype("int32") % 50, y) for x, y in batches(4)]

    def model_fn(features, labels, mode, params):
        with v1.variable_scope("encoder"):
            table = v1.get_variable("embedding", [50, 8])
            rows = tf.nn.embedding_lookup(table, features)
        loss = cross_entropy(v1.layers.dense(tf.reduce_mean(rows, 1), CLASSES), labels)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    assert_as_in_session(model_fn, tmp_path, data)
