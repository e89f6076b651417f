"""Assignments of values of a batch, such as the moving statistics of batch normalization."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from csrun.tensorflow.errors import GraphError, line_of, refused
from csrun.tensorflow.graph_gradients import ancestors, operator_of
from csrun.tensorflow.graph_import import GraphImporter
from csrun.tensorflow.tf_version import tf
from csrun.tensorflow.variable_writes import ASSIGNMENTS, is_write, value_ancestors


def import_statistics(
    importer: GraphImporter,
    graph: Any,
    ends: Sequence[Any],
    batch: Set[str],
    gradients: Mapping[str, str],
) -> None:
    """Import the assignments of batch values, such as means, that a step runs.

    Each sets a state's next value.

    ends: train_op and loss.
    batch: names of the placeholders' operators.
    gradients: weights by the names of their gradients' placeholders.

    Raises: GraphError for one of UPDATE_OPS that train_op does not run, and for an assignment that
    is neither a batch value nor an optimizer's
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
    owned = _optimizer_variables(run, {*gradients.values()})
    owned.add(operator_of(tf.compat.v1.train.get_global_step(graph)).name)
    for op in run:
        if not op.type.startswith("Assign") or not op.inputs:
            continue
        variable = op.inputs[0].op.name
        below = {each.name for each in value_ancestors(op.inputs[1].op)}
        if op.type in ASSIGNMENTS and below & batch and not below & gradients.keys():
            importer.assign(op)
        elif variable not in owned:
            raise refused(
                op,
                f"train_op changes {variable}, which is neither a weight nor a statistic of the "
                "batch, so that csrun would leave it as it is: leave this assignment out",
            )


def _optimizer_variables(run: Sequence[Any], weights: Set[str]) -> set[str]:
    """Return names of the operators that updates of weights read: slots, powers of rates and
    others.
    """
    updates = [op for op in run if is_write(op) and op.inputs[0].op.name in weights]
    return {op.name for op in ancestors(updates)}
