"""Operators of CIRH that `lair` lowers: every result is a function of a few numbers."""

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import comparison, powers, rounding, trigonometry
from csrun.cirh.ops.arithmetic import (
    AddOp,
    AddProductOp,
    DivOp,
    ExpOp,
    LogOp,
    MulOp,
    NegOp,
    SqrtOp,
    SubOp,
    ToCopyOp,
)
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.batch import MaskPaddingOp
from csrun.cirh.ops.random import MaskedScaleOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import CloneOp, ExpandOp
from csrun.cirh.ops.table_parts import EmbeddingPartOp, NllLossPartBackwardOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.lair.activation import activation_of

#: NumPy's function for each operator; IDENTITY and SUM have none.
CALLS: dict[type[Operation], str] = {
    AddOp: "add",
    SubOp: "subtract",
    MulOp: "multiply",
    DivOp: "divide",
    NegOp: "negative",
    ExpOp: "exp",
    LogOp: "log",
    SqrtOp: "sqrt",
    powers.AbsOp: "absolute",
    powers.ReciprocalOp: "reciprocal",
    powers.Log1pOp: "log1p",
    powers.PowOp: "power",
    trigonometry.SinOp: "sin",
    trigonometry.CosOp: "cos",
    trigonometry.TanOp: "tan",
    trigonometry.AsinOp: "arcsin",
    trigonometry.AcosOp: "arccos",
    trigonometry.AtanOp: "arctan",
    trigonometry.Atan2Op: "arctan2",
    trigonometry.SinhOp: "sinh",
    trigonometry.CoshOp: "cosh",
    trigonometry.AsinhOp: "arcsinh",
    trigonometry.AcoshOp: "arccosh",
    trigonometry.AtanhOp: "arctanh",
    trigonometry.Expm1Op: "expm1",
    rounding.FloorOp: "floor",
    rounding.CeilOp: "ceil",
    rounding.TruncOp: "trunc",
    rounding.RoundOp: "rint",
    rounding.FloorDivideOp: "floor_divide",
    rounding.RemainderOp: "remainder",
    rounding.FmodOp: "fmod",
    comparison.EqOp: "equal",
    comparison.NeOp: "not_equal",
    comparison.LtOp: "less",
    comparison.LeOp: "less_equal",
    comparison.GtOp: "greater",
    comparison.GeOp: "greater_equal",
    comparison.MaximumOp: "maximum",
    comparison.MinimumOp: "minimum",
}
#: Those whose results on integers are no floats.
OF_INTEGERS = (
    AddOp,
    SubOp,
    MulOp,
    NegOp,
    powers.AbsOp,
    powers.SignOp,
    powers.PowOp,
    rounding.FloorDivideOp,
    rounding.RemainderOp,
    rounding.FmodOp,
    comparison.ComparisonOp,
    comparison.MaximumOp,
    comparison.MinimumOp,
)
IDENTITY, CAST, WHERE, MASKED = "identity", "cast", "where", "masked_scale"
#: Of rows: their largest number, that at their label's place, and what a loss's gradient takes off.
LARGEST, PICK, OF_LABEL = "largest", "pick", "of_label"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scalar:
    """The body of an operator: a function of one number of each operand."""

    function: str
    options: tuple[tuple[str, float], ...] = ()


def scalar_of(op: Operation) -> Scalar | None:
    """The body of an operator that `lair` takes, else None."""
    if isinstance(op, SumOp | CloneOp):
        return Scalar(IDENTITY)
    if isinstance(op, ToCopyOp):
        return Scalar(CAST)
    if isinstance(op, comparison.WhereOp):
        return Scalar(WHERE)
    if isinstance(op, MaskedScaleOp):
        return Scalar(MASKED, (("scale", op.scale.value.data),))
    if type(op) in CALLS:
        whole = is_float(type_of(op.results[0])) or isinstance(op, OF_INTEGERS)
        return Scalar(CALLS[type(op)]) if whole else None
    if activation := activation_of(op):
        return Scalar(activation.kind, activation.options)
    return None


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

    Texts of several operands may be written over the first one only; a choice over what it takes
    where the condition holds.
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
        case comparison.WhereOp():
            return operands[1:2]
        case _ if activation_of(op):
            operands = operands[:1]
    return [] if scalar_of(op) is None else operands
