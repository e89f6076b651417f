"""Cumulative sums, products and log-sum-exps, and distances, composed of other operators."""

from collections.abc import Callable
from math import inf, prod
from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, SubOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.comparison import EqOp, WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.powers import AbsOp, PowOp, SignOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import SliceOp
from csrun.pytorch.operators.base import Emission, Emitter, axis, dtype, name_of, rank, shape
from csrun.pytorch.operators.reductions import norm
from csrun.pytorch.operators.special import logaddexp

Combine = Callable[[SSAValue, SSAValue], SSAValue]


def _part(e: Emission, x: SSAValue, dim: int, start: int, end: int) -> SSAValue:
    return e.emit(SliceOp, x, dim=dim, start=start, end=end, step=1)


def scan(e: Emission, x: SSAValue, dim: int, combine: Combine, neutral: float) -> SSAValue:
    """Emit an inclusive scan along an axis, in log2(size) passes.

    Source: Hillis and Steele 1986, Data parallel algorithms
    """
    sizes, shift = shape(x), 1
    while shift < sizes[dim]:
        first = e.full(neutral, dtype(x), (*sizes[:dim], shift, *sizes[dim + 1 :]))
        others = _part(e, x, dim, 0, sizes[dim] - shift)
        x = combine(x, e.emit(CatOp, first, others, dim=dim))
        shift *= 2
    return x


def product(e: Emission, x: SSAValue, *dims: Any, **to: Any) -> SSAValue:
    """Product by halving."""
    kind = to.get("dtype")
    x = e.cast(x, e.dtype if kind is None else name_of(kind))
    dim = axis(dims[0], x) if dims else 0
    x = x if dims else e.view(x, (prod(shape(x)),))
    if not rank(x):
        return x
    return e.view(product_along(e, x, dim), e.sizes)


def product_along(e: Emission, x: SSAValue, dim: int) -> SSAValue:
    """Emit the product along an axis, which stays. Shapes: [..., N, ...] -> [..., 1, ...]"""
    if not shape(x)[dim]:
        return e.full(1, dtype(x), (*shape(x)[:dim], 1, *shape(x)[dim + 1 :]))
    while (size := shape(x)[dim]) > 1:
        half = size // 2
        found = e.emit(MulOp, _part(e, x, dim, 0, half), _part(e, x, dim, half, 2 * half))
        last = [_part(e, x, dim, size - 1, size)] if size % 2 else []
        x = e.emit(CatOp, found, *last, dim=dim) if last else found
    return x


def cumulative(kind: type[CirhOp], neutral: float) -> Emitter:
    """Return the emitter of a cumulative sum or product.

    Rounding errors grow with the logarithm of an element's place, as values are added in pairs.
    """

    def emit(e: Emission, x: SSAValue, dim: int, **to: Any) -> SSAValue:
        x = e.cast(x, e.dtype)
        if not rank(x):
            return x
        return scan(e, x, axis(dim, x), lambda a, b: e.emit(kind, a, b), neutral)

    return emit


def cumulative_logsumexp(e: Emission, x: SSAValue, dim: int) -> SSAValue:
    if not rank(x):
        return x
    return scan(e, x, axis(dim, x), lambda a, b: _logaddexp(e, a, b), -inf)


def _logaddexp(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    return logaddexp(e, a, b)


def _differences(e: Emission, x: SSAValue, y: SSAValue) -> SSAValue:
    """Shapes: [..., P, M] and [..., R, M] -> [..., P, R, M]"""
    x = e.view(x, (*shape(x)[:-1], 1, shape(x)[-1]))
    y = e.view(y, (*shape(y)[:-2], 1, *shape(y)[-2:]))
    return e.emit(SubOp, x, y)


def distances(e: Emission, x: SSAValue, y: SSAValue, p: float, mode: Any = None) -> SSAValue:
    """Distances of each row of x to each of y."""
    difference = _differences(e, x, y)
    return norm(e, difference, p, rank(difference) - 1)


def distances_backward(
    e: Emission, grad: SSAValue, x: SSAValue, y: SSAValue, p: float, found: SSAValue
) -> SSAValue:
    """Gradient of x, 0 where a distance is 0."""
    difference = _differences(e, x, y)
    grad, found = (e.view(v, (*shape(v), 1)) for v in (grad, found))
    zero = e.full(0, dtype(difference))
    slope = e.emit(SignOp, difference)
    if p == inf:
        is_one = e.emit(EqOp, e.emit(AbsOp, difference), found)
        slope = e.emit(WhereOp, is_one, slope, zero)
    elif p == 0:
        slope = e.emit(MulOp, slope, zero)
    elif p != 1:
        ratio = e.emit(DivOp, e.emit(AbsOp, difference), found)
        slope = e.emit(MulOp, slope, e.emit(PowOp, ratio, e.full(p - 1, dtype(difference))))
    slope = e.emit(WhereOp, e.emit(EqOp, found, zero), zero, slope)
    return e.emit(SumOp, e.emit(MulOp, grad, slope), dims=(rank(difference) - 2,), keepdim=False)


EMITTERS: dict[str, Emitter] = {
    "aten.prod.default": product,
    "aten.prod.dim_int": product,
    "aten.cumsum.default": cumulative(AddOp, 0),
    "aten.cumprod.default": cumulative(MulOp, 1),
    "aten.logcumsumexp.default": cumulative_logsumexp,
    "aten._cdist_forward.default": distances,
    "aten._euclidean_dist.default": lambda e, x, y: distances(e, x, y, 2),
    "aten._cdist_backward.default": distances_backward,
}
