"""Assignments of values of a batch, such as the moving statistics of batch normalization."""

from collections.abc import Callable, Mapping, Set
from typing import Any

from csrun.nn import Tensor
from csrun.tensorflow.errors import GraphError, line_of
from csrun.tensorflow.graph_gradients import ancestors
from csrun.tensorflow.graph_import import GraphImporter

#: Next value of a variable, from its value and the operand of an assignment.
_NEXT: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AssignVariableOp": lambda old, value: value,
    "AssignAddVariableOp": lambda old, value: old + value,
    "AssignSubVariableOp": lambda old, value: old - value,
}


def import_statistics(
    importer: GraphImporter, graph: Any, train_op: Any, batch: Set[str], gradients: Set[str]
) -> None:
    """Import the assignments that train_op runs of values of the batch, such as its mean.

    Each sets a state's next value. batch, gradients: names of the placeholders' operators

    Raises: GraphError for one of UPDATE_OPS that train_op does not run
    """
    run = ancestors([getattr(train_op, "op", train_op)], by_control=True)
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
        if op.type in _NEXT:
            below = {each.name for each in ancestors([op.inputs[1].op])}
            if below & batch and not below & gradients:
                importer.assign(op, _NEXT[op.type])
