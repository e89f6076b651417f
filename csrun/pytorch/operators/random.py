"""Random masks and numbers of csrun's own, keyed by seed, step, operator and sample."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.batch_axes import SampleAxis
from csrun.cirh.ops.arithmetic import MulOp
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp, UniformOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.cirh.types import tensor_type
from csrun.pytorch.operators.base import Emission, Emitter, dtype, shape


def dropout(e: Emission, x: SSAValue, p: float) -> SSAValue:
    mask = _draw_mask(e, shape(x), e.dependence(x).sample_axis, p)
    e.saved[e.number] = e.drawn[e.number] = mask
    return e.emit(MaskedScaleOp, x, mask, scale=1 / (1 - p))


def uniform(e: Emission, like: SSAValue) -> SSAValue:
    """Emit numbers with the shape and the samples of a value."""
    return _draw(e, UniformOp, dtype(like), shape(like), e.dependence(like).sample_axis)


def _draw_mask(e: Emission, sizes: tuple[int, ...], sample_axis: SampleAxis, p: float) -> SSAValue:
    return _draw(e, DropoutMaskOp, "bool", sizes, sample_axis, rate=p)


def _draw(
    e: Emission,
    kind: type[LeafOp],
    dtype: str,
    sizes: tuple[int, ...],
    sample_axis: SampleAxis,
    **properties: float,
) -> SSAValue:
    """Emit a value drawn with samples on axis 0, and permuted to the axes of `sizes`."""
    if sample_axis.axis is not None and sample_axis.outer > 1:  # [T B] as [T, B]
        own = SampleAxis(sample_axis.axis + 1, rows=sample_axis.rows)
        split = sample_axis.split_sizes(sizes)
        return e.view(_draw(e, kind, dtype, split, own, **properties), sizes)
    first = sample_axis.axis or 0
    drawn = (sizes[first], *sizes[:first], *sizes[first + 1 :]) if sizes else ()
    rows = 0 if sample_axis.axis is None else sample_axis.rows
    options = {"stream": e.next_stream(), "rows": rows}
    value = e.builder.leaf(kind, tensor_type(drawn, dtype), **properties, **options)
    if not first:
        return value
    return e.emit(PermuteOp, value, dims=(*range(1, first + 1), 0, *range(first + 1, len(sizes))))


def dropout_backward(
    e: Emission, grad: SSAValue, x: SSAValue, p: float, **unused: Any
) -> tuple[SSAValue]:
    return (e.emit(MaskedScaleOp, grad, e.saved[e.forward_number], scale=1 / (1 - p)),)


def channel_dropout(e: Emission, x: SSAValue, p: float) -> SSAValue:
    """Dropout of whole channels. Shapes: [N, C, ...]"""
    sample_axis, kind = e.dependence(x).sample_axis, shape(x)[:2]
    mask = _draw_mask(e, kind, sample_axis if sample_axis.axis in (0, 1) else SampleAxis(None), p)
    e.drawn[e.number] = mask
    scales = e.emit(MulOp, e.cast(mask, dtype(x)), e.full(1 / (1 - p), dtype(x)))
    e.saved[e.number] = e.view(scales, (*kind, *(1 for _ in shape(x)[2:])))
    return e.emit(MulOp, x, e.saved[e.number])


def channel_dropout_backward(
    e: Emission, grad: SSAValue, x: SSAValue, p: float, **unused: Any
) -> tuple[SSAValue]:
    return (e.emit(MulOp, grad, e.saved[e.forward_number]),)


EMITTERS: dict[str, Emitter] = {
    "csrun::channel_dropout": channel_dropout,
    "csrun::channel_dropout_backward": channel_dropout_backward,
    "csrun::dropout": dropout,
    "csrun::dropout_backward": dropout_backward,
    "csrun::uniform": uniform,
}
