"""tf.cond and tf.switch_case without control flow.

A predicate that is constant over steps selects its branch at import. For a changing one both
branches are computed, and each result is selected from one of them.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from tensorflow.python.ops import cond_v2, control_flow_util

from csrun.tensorflow.errors import refused
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.graph_gradients import ancestors, variables_by_operator
from csrun.tensorflow.tf_version import tf
from csrun.tensorflow.variable_writes import is_write

BRANCHES = ("If", "StatelessIf", "Switch", "Merge")  # operators of tf.cond


@contextmanager
def without_branches() -> Iterator[None]:
    """Context manager in which tf.cond and tf.switch_case are resolved."""
    resolved = partial(_cond, cond_v2.cond_v2)
    if not control_flow_util.ENABLE_CONTROL_FLOW_V2:
        resolved = partial(_cond_of_v1, resolved)
    with (
        patch.object(control_flow_util, "ENABLE_CONTROL_FLOW_V2", True),
        patch.object(cond_v2, "cond_v2", resolved),
        patch.object(cond_v2, "indexed_case", _switch_case),
    ):
        yield


def _switch_case(index: Any, branches: Sequence[Callable[[], Any]], **unused: Any) -> Any:
    """Call tf.case; an index beyond the others takes the last branch."""
    *pairs, (_, last) = ((tf.equal(index, n), branch) for n, branch in enumerate(branches))
    if not pairs:
        return tf.nest.map_structure(partial(_result, index), last())
    return tf.case(pairs, default=last)


def _cond_of_v1(
    resolve: Callable[..., Any],
    predicate: Any,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    *others: Any,
) -> Any:
    """Call tf.cond as without control flow v2: lists of one result are unpacked if not strict."""
    caller = inspect.currentframe().f_back  # type: ignore[union-attr]  # TensorFlow's cond()
    is_strict = caller.f_locals.get("strict", True)  # type: ignore[union-attr]
    if is_strict or tf.compat.v1.get_default_graph().building_function:
        return resolve(predicate, true_fn, false_fn, *others)
    return resolve(predicate, lambda: _unpacked(true_fn()), lambda: _unpacked(false_fn()), *others)


def _unpacked(found: Any) -> Any:
    return found[0] if isinstance(found, list | tuple) and len(found) == 1 else found


def _cond(
    original: Callable[..., Any],
    predicate: Any,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    *others: Any,
    **options: Any,
) -> Any:
    """Call one or both branches; TensorFlow's own function if the batch does not determine the
    predicate.
    """
    known = value_of(predicate) if hasattr(predicate, "op") else predicate
    if known is not None:
        found = true_fn() if known else false_fn()
        return tf.nest.map_structure(partial(_result, predicate), found)
    if not _is_of_batch(predicate):
        return original(predicate, true_fn, false_fn, *others, **options)
    return _selected(predicate, false_fn, true_fn)


def _is_of_batch(predicate: Any) -> bool:
    is_in_function = hasattr(predicate.graph, "outer_graph")  # whose arguments are placeholders
    return not is_in_function and any(op.type == "Placeholder" for op in ancestors([predicate.op]))


def _result(predicate: Any, found: Any) -> Any:
    """Return a branch's result as a tensor: that of an operator without one is the predicate."""
    if found is not None and not isinstance(found, tf.Operation):
        is_tensor = tf.is_tensor(found) or isinstance(found, tf.TensorArray)
        return found if is_tensor else tf.convert_to_tensor(found)
    with tf.control_dependencies([] if found is None else [found]):
        return tf.identity(predicate)


def _selected(predicate: Any, false_fn: Any, true_fn: Any) -> Any:
    """Call both branches, and select each of their results.

    Raises: GraphError for an assignment in a branch, and for results of two shapes
    """
    graph = predicate.graph
    before = {op.name for op in graph.get_operations()}
    taken, other = true_fn(), false_fn()
    initial = {v.initializer.name for v in variables_by_operator(graph).values()}
    for op in graph.get_operations():
        if is_write(op) and op.name not in before | initial:
            raise refused(
                op,
                "a branch of tf.cond writes a variable, and csrun computes both branches where the "
                "predicate depends on the batch: write it outside, a value that tf.where selects",
            )
    tf.nest.assert_same_structure(taken, other)
    return tf.nest.map_structure(partial(_chosen, predicate), taken, other)


def _chosen(predicate: Any, taken: Any, other: Any) -> Any:
    """Return a selection of two results; after both, for operators without results."""
    if taken is None or isinstance(taken, tf.Operation):
        return _result(predicate, tf.group(*(each for each in (taken, other) if each is not None)))
    taken, other = tf.convert_to_tensor(taken), tf.convert_to_tensor(other)
    if taken.shape != other.shape:
        raise refused(
            other.op,
            f"the branches of tf.cond have the shapes {taken.shape} and {other.shape}, and the "
            "predicate changes: give both one shape",
        )
    return tf.where(predicate, taken, other)
