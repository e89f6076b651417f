"""Loops whose number of iterations is known or bounded, unrolled while the graph is built.

dynamic_rnn, Keras's recurrent layers and tf.map_fn make such loops. Their TensorArrays are imported
as lists of tensors, by csrun.tensorflow.operators.tensor_lists.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tensorflow.python.framework.smart_cond import smart_constant_value
from tensorflow.python.ops import control_flow_util, rnn, while_v2
from tensorflow.python.ops.tensor_array_ops import build_ta_with_new_flow

from csrun.tensorflow.errors import refused
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.tf_version import tf


@contextmanager
def without_loops() -> Iterator[None]:
    """Context manager in which loops are unrolled."""
    of_dynamic_rnn = SimpleNamespace(while_loop=partial(_full, rnn.while_loop.while_loop))
    with (
        patch.object(control_flow_util, "ENABLE_CONTROL_FLOW_V2", True),
        patch.object(while_v2, "while_loop", partial(_unrolled, while_v2.while_loop)),
        patch.object(rnn, "while_loop", of_dynamic_rnn),
    ):
        yield


def _full(
    original: Callable[..., Any],
    cond: Callable[..., Any],
    *arguments: Any,
    maximum_iterations: Any = None,
    **options: Any,
) -> Any:
    """Run the loop of dynamic_rnn for all time steps, also if sequence_length ends it earlier.

    Its body gives the samples that have ended zeros as outputs, and their last state.
    """
    if maximum_iterations is None:  # raw_rnn
        return original(cond, *arguments, **options)
    return original(
        lambda *unused: True, *arguments, maximum_iterations=maximum_iterations, **options
    )


def _unrolled(
    original: Callable[..., Any],
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    *others: Any,
    maximum_iterations: Any = None,
    return_same_structure: bool = True,
    back_prop: bool = True,
    **options: Any,
) -> Any:
    """Call the body once per iteration; TensorFlow's own function, whose operators are refused, for
    a loop without a largest length.
    """
    values = tf.nest.map_structure(_tensor, list(loop_vars))
    most = None if maximum_iterations is None else _known(maximum_iterations)
    count = 0
    while most is None or count < most:
        goes_on = _known(cond(*values))
        if goes_on is None and most is not None and _can_be_masked(values):
            values = _masked(cond, body, values, most - count)
            break
        if goes_on is None:
            options |= {"maximum_iterations": maximum_iterations, "back_prop": back_prop}
            options |= {"return_same_structure": return_same_structure}
            return original(cond, body, loop_vars, *others, **options)
        if not goes_on:
            break
        found = map(_constant, tf.nest.flatten(body(*values)))
        values = tf.nest.pack_sequence_as(list(loop_vars), list(found))
        count += 1
    last = tf.nest.flatten(values) if back_prop else map(_stopped, tf.nest.flatten(values))
    results = list(last)
    if len(results) == 1 and not return_same_structure:
        return results[0]
    return tf.nest.pack_sequence_as(loop_vars, results)


def _can_be_masked(values: Any) -> bool:
    """Return whether a loop that the batch ends may be computed to its largest length."""
    return not any(isinstance(each, tf.TensorArray) for each in tf.nest.flatten(values))


def _masked(cond: Callable[..., Any], body: Callable[..., Any], values: Any, count: int) -> Any:
    """Call the body `count` times; its results are kept until the condition is first false.

    Counters, which are constant in each iteration, still increase; their values are not kept.
    Beyond the end the body gets the first values, since gradients of the last ones may be no
    numbers, and zero times them, too.

    Raises: GraphError for a result of another shape
    """
    first = kept = seen = tf.nest.flatten(values)
    is_running = tf.constant(True)
    for _ in range(count):
        given = tf.nest.pack_sequence_as(values, seen)
        is_running = tf.logical_and(is_running, cond(*given))
        chosen = [
            before
            if before is start or before.op.type == "Const"
            else tf.where(is_running, before, start)
            for before, start in zip(seen, first, strict=True)
        ]
        results = tf.nest.flatten(body(*tf.nest.pack_sequence_as(values, chosen)))
        found = [_constant(tf.convert_to_tensor(each)) for each in results]
        for before, after in zip(kept, found, strict=True):
            if before.shape != after.shape:
                raise refused(
                    after.op,
                    f"a loop that the batch ends changes a shape from {before.shape} to "
                    f"{after.shape}: give its values one shape",
                )
        kept = [tf.where(is_running, *each) for each in zip(found, kept, strict=True)]
        pairs = zip(found, kept, strict=True)
        seen = [after if after.op.type == "Const" else before for after, before in pairs]
    return tf.nest.pack_sequence_as(values, kept)


def _stopped(value: Any) -> Any:
    """Return a result of a loop that gradients do not pass through."""
    if isinstance(value, tf.TensorArray):
        return build_ta_with_new_flow(value, tf.stop_gradient(value.flow))
    return tf.stop_gradient(value)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.TensorArray) else tf.convert_to_tensor(value)


def _known(value: Any) -> Any:
    """Return a value that is constant over steps, else None."""
    if not hasattr(value, "op"):
        return value
    found = smart_constant_value(value) if value.dtype == tf.bool else tf.get_static_value(value)
    return value_of(value) if found is None else found


def _constant(value: Any) -> Any:
    """Return a constant for a counter, so that its value is soon found in the next iteration."""
    is_counter = tf.is_tensor(value) and value.dtype.is_integer and value.shape.rank == 0
    known = _known(value) if is_counter else None
    return value if known is None else tf.constant(known, value.dtype)
