"""Assignments of values of a batch, such as the moving statistics of batch normalization."""

from collections.abc import Sequence, Set
from typing import Any

from csrun.tensorflow.errors import GraphError, line_of
from csrun.tensorflow.graph_gradients import ancestors
from csrun.tensorflow.graph_import import GraphImporter
from csrun.tensorflow.variable_writes import ASSIGNMENTS, value_ancestors


def import_statistics(
    importer: GraphImporter, graph: Any, ends: Sequence[Any], batch: Set[str], gradients: Set[str]
) -> None:
    """Import the assignments of values of the batch, such as its mean, that a step runs.

    Each sets a state's next value. ends: train_op and loss. batch, gradients: names of the
    placeholders' operators

    Raises: GraphError for one of UPDATE_OPS that train_op does not run
    """
    run = ancestors([getattr(end, "op", end) for end in ends], by_control=True)
    names = {op.name for op in run}
    for entry in graph.get_collection("update_ops"):
        op = getattr(entry, "op", entry)
        if op.name not in names:
            raise GraphError(
                f"{line_of(op)}: train_op does not run {op.name} of UPDATE_OPS, so that the "
                "variable would keep its first value: make train_op within "
                "tf.control_dependencies(tf.compat.v1.get_collection(UPDATE_OPS)), or group them"
            )
    for op in run:
        if op.type in ASSIGNMENTS:
            below = {each.name for each in value_ancestors(op.inputs[1].op)}
            if below & batch and not below & gradients:
                importer.assign(op)
