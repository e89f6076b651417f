"""Embedding and indicator columns, and linear models of categories, without sparse tensors.

A feature column makes a sparse tensor of a dense feature, whose shape depends on the values. Here
it has an entry for each value, also for those that are missing, which the readers mask.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from tensorflow.python.feature_column import feature_column, feature_column_v2
from tensorflow.python.ops import embedding_ops, sparse_ops

from csrun.tensorflow.tf_version import tf

_MISSING = -1  # of an integer feature


@contextmanager
def without_sparse_columns() -> Iterator[None]:
    """Context manager in which columns of integers and of buckets are computed densely.

    Weighted columns, and columns of strings, remain sparse and are refused later.
    """
    columns = _DenseColumns()
    bucketized = feature_column_v2.BucketizedColumn
    vocabulary = feature_column_v2.VocabularyListCategoricalColumn
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (feature_column, "_to_sparse_input_and_drop_ignore_values", columns.of_feature),
        (feature_column_v2, "_to_sparse_input_and_drop_ignore_values", columns.of_feature),
        (bucketized, "_get_sparse_tensors_for_input_tensor", columns.of_buckets),
        (vocabulary, "_transform_input_tensor", columns.of_vocabulary),
        (sparse_ops, "sparse_reshape", columns.reshaped),
        (sparse_ops, "sparse_tensor_to_dense", columns.to_dense),
        (embedding_ops, "safe_embedding_lookup_sparse", columns.combined),
    ]
    with ExitStack() as stack:
        for owner, name, function in replaced:
            original, is_method = getattr(owner, name), isinstance(owner, type)
            bound = partial(function, original)
            new = _method(bound) if is_method else bound
            stack.enter_context(patch.object(owner, name, new))
        yield


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a class binds."""
    return lambda *given, **options: function(*given, **options)


@dataclass
class _DenseColumns:
    """Sparse tensors that have an entry for each value.

    shapes: of the features, by the references of their indices. present: masks of their values.
    """

    shapes: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    present: dict[Any, Any] = field(default_factory=dict)

    def of_feature(
        self, original: Callable[..., Any], feature: Any, ignore_value: Any = None
    ) -> Any:
        """Return the tensor of a dense feature of integers. Shapes: [B, K]"""
        is_sparse = isinstance(feature, tf.SparseTensor)
        feature = feature if is_sparse else tf.convert_to_tensor(feature)
        is_usable = not is_sparse and feature.dtype.is_integer and ignore_value is None
        if not is_usable or feature.shape.rank != 2 or not feature.shape.is_fully_defined():
            return original(feature, ignore_value)
        rows, columns = feature.shape.as_list()
        places = [[row, column] for row in range(rows) for column in range(columns)]
        found = tf.SparseTensor(places, tf.reshape(feature, [-1]), [rows, columns])
        self.shapes[found.indices.ref()] = (rows, columns)
        self.present[found.indices.ref()] = tf.not_equal(feature, _MISSING)
        return found

    def of_buckets(self, original: Callable[..., Any], column: Any, buckets: Any) -> Any:
        """Return the tensor of a column's buckets, of which none is missing."""
        pair = original(column, buckets)
        if buckets.shape.is_fully_defined():
            key = pair.id_tensor.indices.ref()
            self.shapes[key] = tuple(buckets.shape.as_list())
            self.present[key] = tf.ones(buckets.shape, tf.bool)
        return pair

    def of_vocabulary(
        self, original: Callable[..., Any], column: Any, ids: Any, state_manager: Any = None
    ) -> Any:
        """Return the places of integers in a vocabulary."""
        is_usable = ids.indices.ref() in self.shapes and not column.num_oov_buckets
        if not is_usable or not column.dtype.is_integer:
            return original(column, ids, state_manager)
        given = tf.cast(ids.values, tf.int64)
        values = tf.fill(given.shape, tf.constant(column.default_value, tf.int64))
        for place, key in enumerate(column.vocabulary_list):
            is_key = tf.equal(given, tf.constant(int(key), tf.int64))
            values = tf.where(is_key, tf.constant(place, tf.int64), values)
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)

    def reshaped(
        self, original: Callable[..., Any], tensor: Any, *given: Any, **options: Any
    ) -> Any:
        """Return a tensor of two axes unchanged, as linear models reshape any to two."""
        if tensor.indices.ref() in self.shapes:
            return tensor
        return original(tensor, *given, **options)

    def to_dense(
        self, original: Callable[..., Any], tensor: Any, default_value: Any = None, **options: Any
    ) -> Any:
        """Return a dense tensor with `default_value` for what is missing."""
        if tensor.indices.ref() not in self.shapes:
            return original(tensor, default_value=default_value, **options)
        ids, is_present = self._ids_of(tensor)
        return tf.where(is_present, ids, tf.cast(default_value, ids.dtype))

    def combined(
        self,
        original: Callable[..., Any],
        embedding_weights: Any,
        sparse_ids: Any,
        sparse_weights: Any = None,
        combiner: str | None = "mean",
        default_id: Any = None,
        **options: Any,
    ) -> Any:
        """Return the rows of the ids, combined; zeros if none is present.

        Shapes: weights [N, D], ids [B, K] -> [B, D]
        """
        is_plain = sparse_weights is None and default_id is None and not options.get("max_norm")
        if sparse_ids.indices.ref() not in self.shapes or not is_plain:
            return original(
                embedding_weights, sparse_ids, sparse_weights, combiner, default_id, **options
            )
        ids, is_present = self._ids_of(sparse_ids)
        used = tf.where(is_present, ids, tf.zeros_like(ids))
        rows = tf.nn.embedding_lookup(embedding_weights, used)
        mask = tf.cast(is_present, rows.dtype)[:, :, None]
        total = tf.reduce_sum(rows * mask, 1)
        count = tf.maximum(tf.reduce_sum(mask, 1), 1.0)
        scales = {"sum": tf.ones_like(count), "sqrtn": tf.sqrt(count)}
        return total / scales.get(combiner or "mean", count)

    def _ids_of(self, tensor: Any) -> tuple[Any, Any]:
        """Return ids and the mask of those that are present. Shapes: [B, K]"""
        key = tensor.indices.ref()
        ids = tf.reshape(tensor.values, self.shapes[key])
        return ids, tf.logical_and(self.present[key], ids >= 0)
