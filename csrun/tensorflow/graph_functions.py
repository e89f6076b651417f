"""Calls of a tf.function, whose operators become those of the model_fn's graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function

from csrun.tensorflow.tf_version import tf


@contextmanager
def without_functions() -> Iterator[None]:
    """Context manager in which a tf.function's Python code is called in the current graph."""
    with patch.object(polymorphic_function.Function, "__call__", _inlined):
        yield


def _inlined(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call the Python function with its control flow converted by AutoGraph, unless disabled.

    As in TensorFlow, variables that it creates are not trained unless they are given to minimize().
    """
    trainable = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    before = [*trainable]
    call = function._python_function
    if function._autograph:
        call = autograph_util.py_func_from_autograph(call, function._experimental_autograph_options)
    found = call(*arguments, **options)
    trainable[:] = before
    return found
