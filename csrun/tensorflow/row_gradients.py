"""Embedding gradients: dense in csrun, only the looked-up rows in TensorFlow.

For most optimizers the update is the same; where it is not, the log says so.
"""

import logging
from collections.abc import Iterator
from typing import Any

from csrun import nn
from csrun.tensorflow.apply_nodes import LAZY_RULES, GraphLearning
from csrun.tensorflow.errors import line_of
from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.graph_gradients import ancestors

log = logging.getLogger("csrun")


def warn_of_rows(learning: GraphLearning, loss: Any) -> None:
    """Warn of tables whose update differs from TensorFlow's."""
    tables = dict(_tables(loss, learning.trained))
    if not tables:
        return
    name, op = next(iter(tables.items()))
    named = f"{name} and {len(tables) - 1} more" if len(tables) > 1 else name
    rule, clipping = learning.optimizer, learning.clipping
    if isinstance(rule, LAZY_RULES) or (isinstance(rule, nn.SGD) and rule.momentum):
        log.warning(
            f"{line_of(op)}: all rows of {named} are updated in each step; TensorFlow's "
            "optimizer updates only the rows in the batch"
        )
    if clipping.clip_norm or clipping.clip_each:
        log.warning(
            f"{line_of(op)}: gradients of {named} are clipped by the norm of their rows' sums; "
            "TensorFlow takes the norm before it sums the gradients of a row that is used twice"
        )


def _tables(loss: Any, trained: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Return trained variables that the loss only reads by row, with a lookup of each."""
    ops = ancestors([loss.op])
    names = {op.name for op in ops}
    for op in ops:
        if op.name not in trained:
            continue
        uses = [use for use in _uses(op) if use.name in names]
        if uses and all(map(_is_lookup, uses)):
            yield op.name, uses[0]


def _uses(op: Any) -> Iterator[Any]:
    """Operators that use a variable's value."""
    for user in op.outputs[0].consumers():
        if user.type in ("ReadVariableOp", "Identity"):
            yield from _uses(user)
        elif user.type != "VarIsInitializedOp" and not user.type.startswith("Assign"):
            yield user


def _is_lookup(op: Any) -> bool:
    if op.type == "ResourceGather":
        return True
    return op.type == "GatherV2" and value_of(op.inputs[2]) == 0
