"""Operators of CIRH that `lair` lowers: every result is a function of a few numbers."""

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddProductOp, ToCopyOp
from csrun.cirh.ops.base import ElementwiseOp, ints
from csrun.cirh.ops.batch import MaskPaddingOp
from csrun.cirh.ops.comparison import WhereOp
from csrun.cirh.ops.random import MaskedScaleOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import CloneOp, ExpandOp
from csrun.cirh.ops.table_parts import EmbeddingPartOp, NllLossPartBackwardOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.lair.functions import FORMULAS, calls_of
from csrun.compiler.lair.tracing import Options

IDENTITY, CAST, WHERE, MASKED = "identity", "cast", "where", "masked_scale"
#: Of rows: their largest number, that at their label's place, and what a loss's gradient takes off.
LARGEST, PICK, OF_LABEL = "largest", "pick", "of_label"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scalar:
    """The body of an operator: a function of one number of each operand.

    function: NumPy's, or the operator of the formula, or one of those above.
    """

    function: str
    options: Options = ()


def scalar_of(op: Operation) -> Scalar | None:
    """The body of an operator that `lair` takes, else None."""
    if isinstance(op, SumOp | CloneOp):
        return Scalar(IDENTITY)
    if isinstance(op, ToCopyOp):
        return Scalar(CAST)
    if isinstance(op, WhereOp):
        return Scalar(WHERE)
    if isinstance(op, MaskedScaleOp):
        return Scalar(MASKED, (("scale", op.scale.value.data),))
    if not isinstance(op, ElementwiseOp) or op.name not in FORMULAS:
        return None
    if not op.KEEPS_INTEGERS and not is_float(type_of(op.results[0])):
        return None
    options = tuple(sorted(op.options.items()))
    ufunc = calls_of(op.name, options).ufunc
    return Scalar(op.name, options) if ufunc is None else Scalar(ufunc)


def space_of(op: Operation) -> Shape:
    """The iteration space of an operator."""
    return shape_of(type_of(op.x if isinstance(op, SumOp) else op.results[0]))


def reduced_axes(op: Operation) -> tuple[int, ...]:
    """The axes of its space over which an operator sums."""
    return ints(op.properties, "dims") if isinstance(op, SumOp) else ()


def operands_of(op: Operation) -> list[SSAValue]:
    """Operands of an operator, before broadcasting except for sums."""
    return list(op.operands) if isinstance(op, SumOp) else [_repeated(v) for v in op.operands]


def _repeated(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, ExpandOp):
        value = value.owner.x
    return value


def changeable_operands(op: Operation) -> list[SSAValue]:
    """The operands that the result of an operator may be written over, element by element.

    What is more than a lone ufunc may be written over the first one only; a choice over what it
    takes where the condition holds.
    """
    operands = operands_of(op)
    match op:
        case SumOp() | CloneOp() | ToCopyOp():
            return []
        case MaskPaddingOp() | NllLossPartBackwardOp():
            return [op.x]
        case AddProductOp():
            return [op.before]
        case EmbeddingPartOp():
            return list(op.before)
        case WhereOp():
            return operands[1:2]
    scalar = scalar_of(op)
    if scalar is None:
        return []
    return operands[:1] if scalar.function in FORMULAS else operands
