"""Membership, insertion points, histograms: each value is compared with each of a set."""

from math import prod

import numpy as np
import torch
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import SubOp
from csrun.cirh.ops.comparison import EqOp, GeOp, GtOp
from csrun.cirh.ops.indexing import GatherOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import SliceOp
from csrun.pytorch.operators.base import Emission, Emitter, dtype, rank, shape, unsupported
from csrun.pytorch.operators.elementwise import Operand, as_type, logical_not

MOST_COMPARED = 2048  # values of a set: each is compared with each element


def _require_few(name: str, size: int) -> None:
    if size > MOST_COMPARED:
        rule = f"{name} takes at most {MOST_COMPARED} values to compare with"
        raise unsupported(rule, size, "compute it in the dataset")


def is_in(
    e: Emission,
    elements: Operand,
    test_elements: Operand,
    assume_unique: bool = False,
    invert: bool = False,
) -> SSAValue:
    """True if each element is one of a set. Shapes: [...], any -> [...]"""
    known = [x for x in (elements, test_elements) if isinstance(x, SSAValue)]
    kind = dtype(known[0])
    x, tested = (as_type(e, one, kind) for one in (elements, test_elements))
    size = 1
    for n in shape(tested):
        size *= n
    _require_few("isin", size)
    if not size:
        return e.full(invert, "bool", e.sizes)
    is_equal = e.emit(EqOp, e.view(x, (*shape(x), 1)), e.view(tested, (size,)))
    counts = e.emit(SumOp, e.cast(is_equal, "int64"), dims=(rank(x),), keepdim=False)
    found = e.cast(counts, "bool")
    return logical_not(e, found) if invert else found


def search_sorted(
    e: Emission,
    ordered: SSAValue,
    x: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: SSAValue | None = None,
) -> SSAValue:
    """Number of values of an ordered row below each element, or up to it on the right side.

    Shapes: [N] or [..., N], [..., M] -> [..., M]
    """
    if sorter is not None:
        ordered = e.emit(GatherOp, ordered, sorter, dim=rank(ordered) - 1)
    x = as_type(e, x, dtype(ordered))
    size = shape(ordered)[-1]
    _require_few("searchsorted", size)
    if not size:
        return e.full(0, e.dtype, e.sizes)
    rows = e.view(ordered, (*shape(ordered)[:-1], 1, size))
    is_right = right or side == "right"
    # above, or not below: PyTorch's order, in which NaN is above all
    is_above = e.emit(GtOp if is_right else GeOp, rows, e.view(x, (*shape(x), 1)))
    others = e.cast(_negated(e, is_above), e.dtype)
    return e.view(e.emit(SumOp, others, dims=(rank(others) - 1,), keepdim=False), e.sizes)


def _negated(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(EqOp, e.cast(x, "int32"), e.full(0, "int32"))


def bucketize(
    e: Emission, x: Operand, boundaries: SSAValue, out_int32: bool = False, right: bool = False
) -> SSAValue:
    return search_sorted(e, boundaries, x, out_int32, right)


def histogram(
    e: Emission, x: SSAValue, bins: int = 100, min: float = 0, max: float = 0
) -> SSAValue:
    """Counts of the values between edges that have equal distances. Shapes: any -> [bins]"""
    if min == max:
        rule, remedy = "histc needs a range", "pass min and max, which differ"
        raise unsupported(rule, f"min={min} and max={max}", remedy)
    _require_few("histc", bins)
    edges = torch.linspace(min, max, bins + 1, dtype=getattr(torch, dtype(x))).numpy()
    edges[-1] = np.nextafter(edges[-1], np.inf)  # the last bin has its end, too
    is_above = e.emit(GeOp, e.view(x, (prod(shape(x)), 1)), e.constant(edges))
    counts = e.emit(SumOp, e.cast(is_above, e.dtype), dims=(0,), keepdim=False)
    from_edge = e.emit(SliceOp, counts, dim=0, start=0, end=bins, step=1)
    next_edge = e.emit(SliceOp, counts, dim=0, start=1, end=bins + 1, step=1)
    return e.emit(SubOp, from_edge, next_edge)


EMITTERS: dict[str, Emitter] = {
    **{f"aten.isin.{form}": is_in for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")},
    **{f"aten.searchsorted.{form}": search_sorted for form in ("Tensor", "Scalar")},
    "aten.histc.default": histogram,
    **{f"aten.bucketize.{form}": bucketize for form in ("Tensor", "Scalar")},
}
