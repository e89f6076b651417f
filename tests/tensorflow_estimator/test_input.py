"""tf.data in a job: each task reads the same batches."""

import sys
import time

import numpy as np
import pytest
from support.tf_models import ignore_warnings, tf

from csrun.base.errors import UsageError
from csrun.data import Dataset, formats
from csrun.executable import RunMode
from csrun.tensorflow.estimator_names import estimator_module
from csrun.tensorflow.tf_input import input_of

pytestmark = ignore_warnings


def _late_at_first(number):
    """Return a number, the first of each 8 after a delay."""
    time.sleep(0.05 * (int(number) % 8 == 0))
    return number


def delayed(numbers):
    return tf.py_function(_late_at_first, [numbers], tf.int64)


def read(make):
    return [np.asarray(each).tolist() for each in input_of(make, RunMode.TRAIN, 1)(None)]


def test_parallel_maps_keep_their_order():
    def input_fn(params):
        return tf.data.Dataset.range(16).map(delayed, num_parallel_calls=8, deterministic=False)

    assert read(input_fn) == list(range(16))


def test_files_read_in_parallel_keep_their_order():
    def rows(start):
        return tf.data.Dataset.range(start, start + 3).map(delayed)

    def input_fn(params):
        files = tf.data.Dataset.from_tensor_slices(np.array([0, 8, 17], np.int64))
        return files.interleave(rows, 3, num_parallel_calls=3, deterministic=False)

    assert read(input_fn) == [0, 8, 17, 1, 9, 18, 2, 10, 19]


def test_a_script_that_turns_the_order_off_is_overruled():
    def input_fn(params):
        options = tf.data.Options()
        options.deterministic = False
        return tf.data.Dataset.range(16).map(delayed, 8).with_options(options)

    assert read(input_fn) == list(range(16))


def test_arrays_are_given_as_by_the_estimators_of_tensorflow_1():
    """Batches that span two passes, the last one with fewer samples."""
    x, y = {"a": np.arange(5.0, dtype=np.float32)}, np.arange(5)
    make = estimator_module().inputs.numpy_input_fn
    found = list(input_of(make(x, y, 4, num_epochs=2, shuffle=False), RunMode.EVAL, 1)(None))
    assert [each.tolist() for _, each in found] == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    assert [each.tolist() for each, _ in found] == [each.tolist() for _, each in found]
    shuffled = list(input_of(make(x, y, 5, shuffle=True), RunMode.TRAIN, 1)(None))
    assert sorted(shuffled[0][1]) == list(range(5))
    many = make(np.arange(50), batch_size=50, shuffle=True)
    passes = [next(iter(input_of(many, RunMode.TRAIN, seed)(None)))[0] for seed in (1, 1, 2)]
    first, again, other = (each.tolist() for each in passes)
    assert first == again != other
    with pytest.raises(ValueError, match="shuffle must be provided"):
        make(x, y)


def test_records_are_those_of_csruns_reader(tmp_path):
    for number in range(2):
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            for row in range(12):
                values = np.arange(3) + 10 * row + number
                x = tf.train.Feature(float_list=tf.train.FloatList(value=values))
                y = tf.train.Feature(int64_list=tf.train.Int64List(value=[row % 3]))
                features = tf.train.Features(feature={"x": x, "y": y})
                writer.write(tf.train.Example(features=features).SerializeToString())
    kinds = {"x": tf.io.FixedLenFeature([3], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}

    def input_fn(params):
        files = tf.data.Dataset.list_files(str(tmp_path / "*.tfrecord"), shuffle=False)
        rows = files.interleave(tf.data.TFRecordDataset, cycle_length=1)
        return rows.map(lambda row: tf.io.parse_single_example(row, kinds)).batch(8)

    own = formats.TFExample({"x": formats.Fixed("float32", (3,)), "y": formats.Fixed("int64")})
    ours = list(Dataset.from_files(str(tmp_path / "*.tfrecord"), own).batch(8))
    theirs = list(input_of(input_fn, RunMode.TRAIN, 1)(None))
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        for found, wanted in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_shuffled_data_is_that_of_each_other_task():
    def input_fn(params):
        return tf.data.Dataset.range(64).shuffle(32)

    first = read(input_fn)
    tf.random.uniform([])  # a task may have drawn numbers before
    assert read(input_fn) == first != sorted(first)
    assert "tensorflow" in sys.modules


def test_estimators_with_a_model_of_their_own_are_refused_by_name():
    with pytest.raises(UsageError, match=r"^tf.estimator.DNNClassifier is not supported: write"):
        estimator_module().DNNClassifier([], hidden_units=[10])
