"""tf.data in a job: each task reads the same batches."""

import sys
import time

import numpy as np
from support.tf_models import ignore_warnings, tf

from csrun.executable import RunMode
from csrun.tensorflow.tf_input import input_of

pytestmark = ignore_warnings


def _late_at_first(number):
    """A number, after a while if it is the first of 8."""
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


def test_shuffled_data_is_that_of_each_other_task():
    def input_fn(params):
        return tf.data.Dataset.range(64).shuffle(32)

    first = read(input_fn)
    tf.random.uniform([])  # a task may have drawn numbers before
    assert read(input_fn) == first != sorted(first)
    assert "tensorflow" in sys.modules
