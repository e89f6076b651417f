"""Rewrite rules as data: tables of named rules, indexed by the operators that they start from.

A rule changes the module around its operator and says so, or leaves it as it is. Tables are tuples:
they compose with `+`, and earlier rules are tried first.
"""

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from csrun.cirh.dialect import FAMILIES, run_mode_of
from csrun.cirh.ops.model import InputOp, ParameterOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import TransposeOp, ViewOp
from csrun.mode import RunMode


@dataclass(frozen=True)
class Rule:
    """A named rewrite; `apply` gives True when it has changed the module around its operator."""

    name: str
    roots: tuple[type[Operation], ...]
    apply: Callable[[Operation], bool]


Rules = tuple[Rule, ...]


def erase_dead(op: Operation) -> bool:
    """Erase an operator whose results nobody uses."""
    if any(result.first_use for result in op.results):
        return False
    Rewriter.erase_op(op)
    return True


def view_of_same_shape(op: Operation) -> bool:
    """view(x) -> x when the shape does not change."""
    return op.operands[0].type == op.results[0].type and _replace(op, op.operands[0])


def view_of_view(op: Operation) -> bool:
    """view(view(x)) -> view(x)."""
    inner = op.operands[0].owner
    if not isinstance(inner, ViewOp):
        return False
    op.operands[0] = inner.x
    return True


def transpose_of_transpose(op: Operation) -> bool:
    """t(t(x)) -> x."""
    inner = op.operands[0].owner
    return isinstance(inner, TransposeOp) and _replace(op, inner.x)


def dropout_without_training(op: Operation) -> bool:
    """_masked_scale(x, dropout_mask) -> x, in a module that does not train, or at rate 0."""
    mask = op.operands[1].owner
    if not isinstance(mask, DropoutMaskOp):
        return False
    module = op.parent_op()
    assert isinstance(module, ModuleOp), "operators of CIRH stand in a module"
    if run_mode_of(module) is RunMode.TRAIN and mask.rate.value.data > 0:
        return False
    return _replace(op, op.operands[0])


def _replace(op: Operation, value: SSAValue) -> bool:
    op.results[0].replace_all_uses_with(value)
    Rewriter.erase_op(op)
    return True


#: Operators that may go when nobody reads them; inputs and parameters are the model's face.
PURE: tuple[type[Operation], ...] = tuple(
    op
    for family in FAMILIES
    for op in family.OPS
    if op not in (InputOp, ParameterOp) and op.get_irdl_definition().results
)

CANONICAL: Rules = (
    Rule("dead-code", PURE, erase_dead),
    Rule("view-of-same-shape", (ViewOp,), view_of_same_shape),
    Rule("view-of-view", (ViewOp,), view_of_view),
    Rule("transpose-of-transpose", (TransposeOp,), transpose_of_transpose),
    Rule("dropout-without-training", (MaskedScaleOp,), dropout_without_training),
)
