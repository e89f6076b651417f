"""One form where there are several: operators that do nothing, or undo each other."""

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from csrun.base.mode import RunMode
from csrun.cirh.dialect import run_mode_of
from csrun.cirh.ops.arithmetic import AddOp, NegOp, SubOp
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, TransposeOp, ViewOp
from csrun.compiler.passes.rules.base import Rule, Rules, replace_by_operator, replace_by_value


def same_shape(op: Operation) -> bool:
    """view(x) and expand(x) -> x when the shape does not change."""
    return op.operands[0].type == op.results[0].type and replace_by_value(op, op.operands[0])


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
    return isinstance(inner, TransposeOp) and replace_by_value(op, inner.x)


def identity_permutation(op: Operation) -> bool:
    """permute(x) -> x when every axis stays where it is."""
    dims = ints(op.properties, "dims")
    return dims == tuple(range(len(dims))) and replace_by_value(op, op.operands[0])


def negative_of_negative(op: Operation) -> bool:
    """neg(neg(x)) -> x."""
    inner = op.operands[0].owner
    return isinstance(inner, NegOp) and replace_by_value(op, inner.x)


def signs(op: Operation) -> bool:
    """a + neg(b) -> a - b, a - neg(b) -> a + b."""
    assert isinstance(op, AddOp | SubOp)
    negative = op.rhs.owner
    if not isinstance(negative, NegOp):
        return False
    other = SubOp if isinstance(op, AddOp) else AddOp
    operands = (op.lhs, negative.x)
    return replace_by_operator(op, other.of(operands, **({"scope": op.scope} if op.scope else {})))


def dropout_without_training(op: Operation) -> bool:
    """_masked_scale(x, dropout_mask) -> x, in a module that does not train, or at rate 0."""
    mask = op.operands[1].owner
    if not isinstance(mask, DropoutMaskOp):
        return False
    module = op.parent_op()
    assert isinstance(module, ModuleOp), "operators of CIRH stand in a module"
    if run_mode_of(module) is RunMode.TRAIN and mask.rate.value.data > 0:
        return False
    return replace_by_value(op, op.operands[0])


CANONICAL: Rules = (
    Rule("same-shape", (ViewOp, ExpandOp), same_shape),
    Rule("view-of-view", (ViewOp,), view_of_view),
    Rule("transpose-of-transpose", (TransposeOp,), transpose_of_transpose),
    Rule("identity-permutation", (PermuteOp,), identity_permutation),
    Rule("negative-of-negative", (NegOp,), negative_of_negative),
    Rule("signs", (AddOp, SubOp), signs),
    Rule("dropout-without-training", (MaskedScaleOp,), dropout_without_training),
)
