"""Categorical feature columns, as in tf.compat.v1.Session."""

import re

import numpy as np
import pytest
from support.tf_models import (
    BATCH,
    STEPS,
    CSEstimatorSpec,
    assert_as_in_session,
    cross_entropy,
    ignore_warnings,
    tf,
    trained,
    v1,
)

from csrun.base.errors import UsageError

pytestmark = ignore_warnings
HERE = re.escape(__file__)
columns = tf.feature_column
FEATURES = ("kind", "tags", "age", "size")


def batches(count=STEPS):
    """Categories, of which some are missing (-1), and numbers."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(count):
        kind = rng.integers(0, 6, (BATCH, 1)).astype(np.int32)
        tags = rng.integers(-1, 8, (BATCH, 3)).astype(np.int64)
        numbers = rng.standard_normal((2, BATCH, 1)).astype(np.float32)
        labels = ((kind[:, 0] + tags.max(1)) % 4).astype(np.int32)
        found.append((dict(zip(FEATURES, (kind, tags, *numbers), strict=True)), labels))
    return found


def kinds():
    return columns.categorical_column_with_identity("kind", 6)


def tags():
    return columns.categorical_column_with_identity("tags", 8)


def known_tags():
    return columns.categorical_column_with_vocabulary_list("tags", [7, 3, 5], default_value=-1)


def ages():
    return columns.bucketized_column(columns.numeric_column("age"), [-1.0, 0.0, 1.0])


#: Columns of a deep model.
DEEP = {
    "embedding": lambda: [columns.embedding_column(kinds(), 3)],
    "sum": lambda: [columns.embedding_column(tags(), 3, combiner="sum")],
    "mean": lambda: [columns.embedding_column(tags(), 3)],
    "root": lambda: [columns.embedding_column(tags(), 3, combiner="sqrtn")],
    "vocabulary": lambda: [
        columns.embedding_column(known_tags(), 4),
        columns.indicator_column(known_tags()),
    ],
    "indicators": lambda: [columns.indicator_column(tags()), columns.indicator_column(kinds())],
    "buckets": lambda: [
        ages(),
        columns.embedding_column(ages(), 2),
        columns.numeric_column("size"),
    ],
}


def model_of(logits_of):
    def model_fn(features, labels, mode, params):
        loss = cross_entropy(logits_of(features), labels)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def deep(make):
    def logits_of(features):
        inputs = v1.feature_column.input_layer(features, make())
        hidden = v1.layers.dense(inputs, 16, tf.nn.relu)
        return v1.layers.dense(hidden, 4)

    return model_of(logits_of)


def wide(features):
    return v1.feature_column.linear_model(features, [kinds(), tags(), ages()], units=4)


@pytest.mark.parametrize("name", DEEP)
def test_columns_of_a_deep_model(name, tmp_path):
    assert_as_in_session(deep(DEEP[name]), tmp_path, batches())


def test_a_linear_model_of_categories(tmp_path):
    assert_as_in_session(model_of(wide), tmp_path, batches())


REFUSED = {
    "weights": lambda: [
        columns.embedding_column(columns.weighted_categorical_column(tags(), "size"), 3)
    ],
    "hashes": lambda: [
        columns.embedding_column(
            columns.categorical_column_with_hash_bucket("kind", 5, tf.int64), 3
        )
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_columns_are_refused_with_their_line(name, tmp_path):
    with pytest.raises(UsageError, match=rf"{HERE}:\d+: TensorFlow operator .*: "):
        trained(deep(REFUSED[name]), tmp_path, batches(1))
