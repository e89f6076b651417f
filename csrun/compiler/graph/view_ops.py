"""Operators that are views, and values that are one number; neither needs a kernel."""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from math import isfinite, prod

import numpy as np
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import DivOp
from csrun.cirh.ops.base import CirhOp, ElementwiseOp, ints
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import FullOp, LeafOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import (
    VIEWS,
    ExpandOp,
    PermuteOp,
    SelectOp,
    SliceOp,
    TransposeOp,
    ViewOp,
    index_of,
    inverse,
    part_of,
)
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.labels import Ranges, place_of_count

Numbers = dict[SSAValue, str]


def view_of(op: Operation, x: Array) -> Array | None:
    """Return the view of an operand that a view operator makes; None if strides cannot express
    it.
    """
    match op:
        case ViewOp():
            return x.reshaped(ints(op.properties, "shape"))
        case PermuteOp():
            return x.permuted(ints(op.properties, "dims"))
        case TransposeOp():
            return x.permuted((1, 0))
        case ExpandOp():
            return x.expanded(ints(op.properties, "shape"))
        case SliceOp():
            part = part_of(op.properties, type_of(op.x))
            return x.sliced(part.dim, part.start, part.end, part.step)
        case SelectOp():
            return x.selected(*index_of(op.properties, type_of(op.x)))
        case _:
            raise TypeError(f"{op.name} is not a view")


def undone(op: Operation, out: Array) -> Array | None:
    """Return the operand's array for which a view operator's result is at `out`."""
    match op:
        case ViewOp():
            return out.reshaped(shape_of(type_of(op.x)))
        case PermuteOp():
            return out.permuted(inverse(ints(op.properties, "dims")))
        case TransposeOp():
            return out.permuted((1, 0))
        case _:
            return None


def written_by(update: UpdatingOp) -> tuple[SSAValue, Array] | None:
    """Return the value to write, and its location in the parameter's gradient, for an update.

    None if no kernel can write it there: it is a leaf, a part, or has other readers.
    """
    kind = type_of(update.grad)
    value, place = update.grad, Array("", shape_of(kind), dtype_of(kind))
    while value.uses.get_length() == 1:
        if not isinstance(value.owner, VIEWS):
            return None if isinstance(value.owner, LeafOp) else (value, place)
        below = undone(value.owner, place)
        if below is None:
            return None
        value, place = value.owner.x, below
    return None


def places_of(op: CatOp, out: Array) -> list[Array]:
    """Return the slices of a concatenation that its operands fill."""
    dim = op.dim.value.data
    ends = accumulate((shape_of(type_of(x))[dim] for x in op.tensors), initial=0)
    return [out.sliced(dim, start, end) for start, end in pairwise(ends)]


def views_between(base: SSAValue, value: SSAValue) -> list[Operation]:
    """Return the view operators from a base to a value, in order."""
    found: list[Operation] = []
    while value is not base and isinstance(value.owner, VIEWS):
        found.insert(0, value.owner)
        value = value.owner.x
    return found


def base_of(value: SSAValue) -> SSAValue:
    """Return the value whose memory a value is a view of."""
    while isinstance(value.owner, VIEWS):
        value = value.owner.x
    return value


def numbers_of(operations: Iterable[Operation], ranges: Ranges) -> Numbers:
    """Return the texts of values that are one number, computed from constants and the batch's
    counts.

    operations: in program order.
    ranges: of their labels.
    """
    known: Numbers = {}
    for op in operations:
        text = _number_of(op, known, ranges)
        if text is not None:
            known[op.results[0]] = text
    return known


def _number_of(op: Operation, known: Numbers, ranges: Ranges) -> str | None:
    if isinstance(op, FullOp):
        return _text(float(op.value.value.data))
    if isinstance(op, LabelCountOp):
        place = place_of_count(op, ranges)
        return None if place is None else f"step.counts[{place}]"
    texts = [known[operand] for operand in op.operands if operand in known]
    if len(texts) < len(op.operands):
        return None
    if isinstance(op, DivOp) and texts[1] == _text(0.0):
        return None  # NumPy divides by it, Python does not
    constants = [number for text in texts if (number := _constant_of(text)) is not None]
    if isinstance(op, SumOp):
        shape = shape_of(type_of(op.x))
        count = prod(shape[d] for d in ints(op.properties, "dims"))
        return _text(constants[0] * count) if constants else f"({texts[0]} * {count})"
    if not isinstance(op, CirhOp) or not op.NUMBER:
        return None
    if isinstance(op, ElementwiseOp) and len(constants) == len(texts):
        with np.errstate(all="ignore"):
            return _text(float(op.formula(*constants)))
    return op.NUMBER.format(*texts)


def _constant_of(text: str) -> float | None:
    """Return the value of a number's text; None if it depends on the step."""
    try:
        return float(text)
    except ValueError:
        return None


def _text(number: float) -> str:
    """Return a Python expression of a number; infinity and NaN have no literal."""
    return repr(number) if isfinite(number) else f"float('{number!r}')"
