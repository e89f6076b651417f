"""CIRH operators that `lair` lowers: every result is a function of a few numbers."""

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import ToCopyOp
from csrun.cirh.ops.base import CirhOp, ElementwiseOp, ints
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import CloneOp, ExpandOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.lair.formula_trace import Options
from csrun.compiler.lair.functions import FORMULAS, calls_of

IDENTITY, CAST = "identity", "cast"
#: Of rows: their maximum, the number at the label, and the gradient of a loss.
LARGEST, PICK, OF_LABEL = "largest", "pick", "of_label"
Shape = tuple[int, ...]

#: Operators without a formula.
_BODIES: dict[type[Operation], str] = {SumOp: IDENTITY, CloneOp: IDENTITY, ToCopyOp: CAST}


@dataclass(frozen=True)
class Scalar:
    """Body of an operator: a function of one number of each operand.

    function: NumPy's, or the operator with the formula, or one of those above.
    """

    function: str
    options: Options = ()


def scalar_of(op: Operation) -> Scalar | None:
    """Return the body of an operator that `lair` supports, else None."""
    if type(op) in _BODIES:
        return Scalar(_BODIES[type(op)])
    if not isinstance(op, ElementwiseOp) or op.name not in FORMULAS:
        return None
    if not op.KEEPS_INTEGERS and not is_float(type_of(op.results[0])):
        return None
    options = tuple(sorted(op.options.items()))
    ufunc = calls_of(op.name, options).ufunc
    return Scalar(op.name, options) if ufunc is None else Scalar(ufunc)


def space_of(op: Operation) -> Shape:
    """Return the iteration space of an operator."""
    return shape_of(type_of(op.x if isinstance(op, SumOp) else op.results[0]))


def reduced_axes(op: Operation) -> tuple[int, ...]:
    """Return the axes of its space over which an operator sums."""
    return ints(op.properties, "dims") if isinstance(op, SumOp) else ()


def operands_of(op: Operation) -> list[SSAValue]:
    """Return the operands of an operator; except for sums they are not broadcast yet."""
    return list(op.operands) if isinstance(op, SumOp) else [_repeated(v) for v in op.operands]


def _repeated(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, ExpandOp):
        value = value.owner.x
    return value


def changeable_operands(op: Operation) -> list[SSAValue]:
    """Return the operands that the result of an operator may overwrite, element by element."""
    assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
    if isinstance(op, ElementwiseOp) and scalar_of(op) is None:
        return []  # computed by a library kernel, which reads more than one number
    found = [v for n, v in enumerate(op.operands) if op.operand_name(n) in op.WRITES_OVER]
    return [_repeated(value) for value in found]
