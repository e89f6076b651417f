"""LAIR operators that use the label of a row."""

from collections.abc import Mapping, Sequence

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.members import Access, Member
from csrun.compiler.emit.llvm.loops.scalars import call_function, convert


def less_label(
    code: Code, member: Member, args: Sequence[LaneValue], column: LaneValue
) -> LaneValue:
    """Return (x - share at the label) scale, and 0 in ignored rows; column: that of the first
    lane.
    """
    x, labels, ignored, scale = args
    if x.kind.lanes > 1:
        column = code.op("add", code.splat(column, LANES), code.lane_numbers())
    share = code.constant(float(dict(member.options)["share"]), x.kind)
    is_label = code.compare("eq", convert(code, labels, "int64"), column)
    zero = code.constant(0, x.kind)
    found = code.op("fsub", x, code.select(is_label, share, zero))
    found = code.op("fmul", found, convert(code, scale, x.kind.dtype))
    return code.select(ignored, zero, found)


def picked(
    code: Code, member: Member, rows: Mapping[tuple[int, str, int, int, int], str]
) -> LaneValue:
    """Return the number at the label; an invalid label is clamped to a valid index.

    rows: addresses of the row in each array.
    """
    x, labels = member.ins
    assert isinstance(x, Access), "it is read"
    assert isinstance(labels, Access), "it is read"
    label = code.load(rows[labels.base], Kind(labels.dtype))
    label = convert(code, label, "int64")
    last = index(member.classes - 1)
    label = call_function(code, "maximum", [label, index(0)])
    label = call_function(code, "minimum", [label, last])
    elements = code.op("mul", label, index(x.axes[-1]))
    return code.load(code.offset(rows[x.base], x.dtype, elements), Kind(x.dtype))
