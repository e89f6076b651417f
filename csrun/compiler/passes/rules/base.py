"""What a rule is, and what rules are written with."""

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.dialect import FAMILIES
from csrun.cirh.ops.model import InputOp, ParameterOp


@dataclass(frozen=True)
class Rule:
    """A named rewrite; `apply` gives True when it has changed the module around its operator."""

    name: str
    roots: tuple[type[Operation], ...]
    apply: Callable[[Operation], bool]


Rules = tuple[Rule, ...]

#: Operators that may go when nobody reads them; inputs and parameters are the model's face.
PURE: tuple[type[Operation], ...] = tuple(
    op
    for family in FAMILIES
    for op in family.OPS
    if op not in (InputOp, ParameterOp) and op.get_irdl_definition().results
)


def replace_by_value(op: Operation, value: SSAValue) -> bool:
    """Let the readers of an operator read `value`, of the same type, in its place."""
    op.results[0].replace_all_uses_with(value)
    Rewriter.erase_op(op)
    return True


def replace_by_operator(op: Operation, new: Operation) -> bool:
    """Put another operator with the same result in an operator's place."""
    new.results[0].name_hint = op.results[0].name_hint
    new.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    return replace_by_value(op, new.results[0])


def erase_dead(op: Operation) -> bool:
    """Erase an operator whose results nobody uses."""
    if any(result.first_use for result in op.results):
        return False
    Rewriter.erase_op(op)
    return True


DEAD_CODE: Rules = (Rule("dead-code", PURE, erase_dead),)
