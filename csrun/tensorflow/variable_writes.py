"""Writes of a graph's variables, and the reads that follow them in a step."""

from collections.abc import Callable, Mapping
from typing import Any

from csrun.nn import Tensor
from csrun.tensorflow.graph_gradients import ancestors

#: Next value of a variable, from its value and the operand of an assignment.
ASSIGNMENTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AssignVariableOp": lambda old, value: value,
    "AssignAddVariableOp": lambda old, value: old + value,
    "AssignSubVariableOp": lambda old, value: old - value,
}


def writes_before(read: Any) -> list[Any]:
    """Return the operators that write a variable before this read in each step."""
    if not read.control_inputs:
        return []
    name = read.inputs[0].op.name
    before = ancestors([*read.control_inputs], by_control=True)
    return [op for op in before if is_write(op) and op.inputs[0].op.name == name]


def is_write(op: Any) -> bool:
    """True for an operator that writes its first operand, a variable."""
    return bool(op.inputs) and op.type.startswith(("Assign", "ResourceApply", "ResourceScatter"))


def value_ancestors(op: Any) -> list[Any]:
    """Return the operators that a value depends on, also through writes before reads."""
    pending, seen = [op], dict[str, Any]()
    while pending:
        new = [each for each in ancestors(pending) if each.name not in seen]
        seen.update({each.name: each for each in new})
        reads = [each for each in new if each.type == "ReadVariableOp"]
        pending = [op for read in reads for op in writes_before(read) if op.name not in seen]
    return [*seen.values()]
