"""Dropout, taken whole: the masks are csrun's own, keyed by seed, step, operator and sample."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import MulOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.cirh.types import tensor_type
from csrun.pytorch.operators.base import Emission, Emitter, dtype, rank, shape, unsupported


def dropout(e: Emission, x: SSAValue, p: float) -> SSAValue:
    """Drawn with the samples on axis 0, then with them where x has them."""
    depends = e.dependence(x)
    first = depends.axis or 0
    others = tuple(d for d in range(rank(x)) if d != first)
    sizes = [shape(x)[d] for d in (first, *others)] if rank(x) else []
    rows = 0 if depends.axis is None else depends.rows
    kind, options = tensor_type(sizes, "bool"), {"stream": e.next_stream(), "rows": rows}
    mask = e.builder.leaf(DropoutMaskOp, kind, rate=p, **options)
    if first:
        mask = e.emit(PermuteOp, mask, dims=(*range(1, first + 1), 0, *others[first:]))
    e.saved[e.place] = e.drawn[e.place] = mask
    return e.emit(MaskedScaleOp, x, mask, scale=1 / (1 - p))


def dropout_backward(
    e: Emission, grad: SSAValue, x: SSAValue, p: float, **unused: Any
) -> tuple[SSAValue]:
    return (e.emit(MaskedScaleOp, grad, e.saved[e.forward], scale=1 / (1 - p)),)


def channel_dropout(e: Emission, x: SSAValue, p: float) -> SSAValue:
    """Of [N, C, ...], whose channels are kept or dropped whole."""
    depends, kind = e.dependence(x), shape(x)[:2]
    if depends.axis not in (None, 0):
        raise unsupported("the samples must lie on the first axis", f"shape {list(shape(x))}")
    options = {"stream": e.next_stream(), "rows": 0 if depends.axis is None else depends.rows}
    mask = e.builder.leaf(DropoutMaskOp, tensor_type(kind, "bool"), rate=p, **options)
    e.drawn[e.place] = mask
    scales = e.emit(MulOp, e.cast(mask, dtype(x)), e.full(1 / (1 - p), dtype(x)))
    e.saved[e.place] = e.view(scales, (*kind, *(1 for _ in shape(x)[2:])))
    return e.emit(MulOp, x, e.saved[e.place])


def channel_dropout_backward(
    e: Emission, grad: SSAValue, x: SSAValue, p: float, **unused: Any
) -> tuple[SSAValue]:
    return (e.emit(MulOp, grad, e.saved[e.forward]),)


EMITTERS: dict[str, Emitter] = {
    "csrun::channel_dropout": channel_dropout,
    "csrun::channel_dropout_backward": channel_dropout_backward,
    "csrun::dropout": dropout,
    "csrun::dropout_backward": dropout_backward,
}
