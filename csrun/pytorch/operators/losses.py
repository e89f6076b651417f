"""Softmax, log-softmax and losses."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from xdsl.ir import SSAValue

from csrun.cirh.ops.activation import SoftplusOp
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.comparison import EqOp, WhereOp
from csrun.cirh.ops.ctc import CtcLossBackwardOp, CtcLossOp
from csrun.cirh.ops.indexing import GatherBackwardOp, GatherOp
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
)
from csrun.cirh.ops.normalization import SoftmaxBackwardOp, SoftmaxOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    axis,
    dtype,
    packed,
    rank,
    shape,
    unsupported,
)

MEAN, SUM = 1, 2  # ATen's numbers of reductions; 0 is none


def _along(e: Emission, kind: type[CirhOp], dim: int, *operands: SSAValue) -> SSAValue:
    """Emit an operator along an axis, with the axes before and after it merged."""
    sizes = shape(operands[0])
    if not sizes:
        return e.view(e.emit(kind, *(e.view(x, (1, 1)) for x in operands), dim=1), ())
    dim, outer, inner = axis(dim, operands[0]), 1, 1
    for n in sizes[:dim]:
        outer *= n
    for n in sizes[dim + 1 :]:
        inner *= n
    along = (outer, sizes[dim]) if inner == 1 else (outer, sizes[dim], inner)
    return e.view(e.emit(kind, *(e.view(x, along) for x in operands), dim=1), sizes)


def softmax(e: Emission, x: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    return _along(e, SoftmaxOp, dim, x)


def softmax_backward(
    e: Emission, grad: SSAValue, out: SSAValue, dim: int, input_dtype: Any
) -> SSAValue:
    return _along(e, SoftmaxBackwardOp, dim, grad, out)


def log_softmax(e: Emission, x: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    return _along(e, LogSoftmaxOp, dim, x)


def log_softmax_backward(
    e: Emission, grad: SSAValue, out: SSAValue, dim: int, input_dtype: Any
) -> SSAValue:
    return _along(e, LogSoftmaxBackwardOp, dim, grad, out)


class NllOptions(NamedTuple):
    """ATen's options of a negative log likelihood."""

    weight: Any
    reduction: int
    ignore_index: int


def nll_loss(
    e: Emission, x: SSAValue, labels: SSAValue, options: NllOptions
) -> tuple[SSAValue, ...]:
    """Loss, and the count that it is a mean over."""
    _require_reduced(options)
    ignored = options.ignore_index
    count = e.emit(LabelCountOp, labels, ignore_index=ignored, dtype=dtype(x))
    total = e.emit(NllLossForwardOp, x, labels, ignore_index=ignored)
    return (e.emit(DivOp, total, count) if options.reduction == MEAN else total), count


def nll_loss_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    labels: SSAValue,
    options: NllOptions,
    count: SSAValue,
) -> SSAValue:
    _require_reduced(options)
    scale = e.emit(DivOp, grad, count) if options.reduction == MEAN else grad
    return e.emit(NllLossBackwardOp, scale, x, labels, ignore_index=options.ignore_index)


def _require_reduced(options: NllOptions) -> None:
    if options.weight is not None:
        raise unsupported(
            "nll_loss has no class weights", "some", "weight the losses of reduction='none'"
        )
    if options.reduction not in (MEAN, SUM):
        rule = "nll_loss must be reduced by mean or sum"
        raise unsupported(rule, "reduction='none'", "use F.nll_loss of log_softmax")


def cross_entropy(
    e: Emission,
    x: SSAValue,
    labels: SSAValue,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> SSAValue:
    """Shapes: x [N, C], [N, C, ...] or [C], labels without the axis of classes"""
    rows = _class_last(e, x)
    flat = e.view(labels, (shape(rows)[0],))
    logarithms = e.emit(LogSoftmaxOp, rows, dim=1)
    options: dict[str, Plain] = {"ignore_index": ignore_index}
    if label_smoothing:
        options["label_smoothing"] = label_smoothing
    if reduction == "none":
        return _each(e, logarithms, flat, ignore_index, label_smoothing)
    count = None
    if reduction == "mean":  # before the loss, whose kernel reads it
        count = e.emit(LabelCountOp, flat, ignore_index=ignore_index, dtype=dtype(x))
    e.saved[e.number] = logarithms, flat, count, options
    total = e.emit(NllLossForwardOp, logarithms, flat, **options)
    return total if count is None else e.emit(DivOp, total, count)


def _each(
    e: Emission, logarithms: SSAValue, labels: SSAValue, ignore_index: int, smoothing: float
) -> SSAValue:
    """Emit the loss of each label, 0 where it is ignored."""
    ignored = e.emit(EqOp, labels, e.full(ignore_index, dtype(labels)))
    indices = e.emit(WhereOp, ignored, e.full(0, dtype(labels)), labels)
    indices = e.view(indices, (*shape(labels), 1))
    picked = e.view(e.emit(GatherOp, logarithms, indices, dim=1), shape(labels))
    zero = e.full(0, dtype(logarithms))
    e.saved[e.number] = logarithms, ignored, indices
    if smoothing:  # each class has an equal share of it
        mean = e.emit(SumOp, logarithms, dims=(1,), keepdim=False)
        mean = _times(e, mean, smoothing / shape(logarithms)[1])
        picked = e.emit(AddOp, _times(e, picked, 1 - smoothing), mean)
    return e.view(e.emit(WhereOp, ignored, zero, e.emit(NegOp, picked)), e.sizes)


def _times(e: Emission, x: SSAValue, factor: float) -> SSAValue:
    return e.emit(MulOp, x, e.full(factor, dtype(x)))


def cross_entropy_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    labels: SSAValue,
    reduction: str,
    label_smoothing: float = 0.0,
    **unused: Any,
) -> tuple[SSAValue]:
    saved = e.saved[e.forward_number]
    if reduction == "none":
        logarithms, ignored, indices = saved
        flat = e.view(grad, shape(ignored))
        own = e.emit(WhereOp, ignored, e.full(0, dtype(grad)), e.emit(NegOp, flat))
        sizes, column = shape(logarithms), e.view(own, shape(indices))
        own = e.emit(GatherBackwardOp, column, indices, input_sizes=sizes, dim=1)
        if label_smoothing:
            share = e.expand(_times(e, column, label_smoothing / sizes[1]), sizes)
            own = e.emit(AddOp, _times(e, own, 1 - label_smoothing), share)
    else:
        logarithms, flat, count, options = saved
        scale = grad if count is None else e.emit(DivOp, grad, count)
        own = e.emit(NllLossBackwardOp, scale, logarithms, flat, **options)
    rows = e.emit(LogSoftmaxBackwardOp, own, logarithms, dim=1)
    return (_class_second(e, rows, shape(x)),)


def _class_last(e: Emission, x: SSAValue) -> SSAValue:
    """Shapes: [N, C, ...] -> [N ..., C]"""
    sizes = shape(x)
    if rank(x) > 2:
        x = e.emit(PermuteOp, x, dims=(0, *range(2, rank(x)), 1))
    classes = sizes[1] if len(sizes) > 1 else sizes[0]
    return e.view(x, (prod(sizes) // max(classes, 1), classes))


def _class_second(e: Emission, rows: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
    """Shapes: [N ..., C] -> sizes of the logits"""
    if len(sizes) < 3:
        return e.view(rows, sizes)
    split = e.view(rows, (sizes[0], *sizes[2:], sizes[1]))
    return e.emit(PermuteOp, split, dims=(0, len(sizes) - 1, *range(1, len(sizes) - 1)))


def ctc_loss(e: Emission, *sequences: SSAValue, blank: int, zero_infinity: bool) -> SSAValue:
    """Shapes: log-probabilities [T, N, C], targets [N, S], lengths [N] -> [N]"""
    return e.emit(CtcLossOp, *sequences, blank=blank, zero_infinity=zero_infinity)


def ctc_loss_backward(
    e: Emission, *given: SSAValue, blank: int, zero_infinity: bool, needs: Sequence[bool]
) -> tuple[SSAValue]:
    return (e.emit(CtcLossBackwardOp, *given, blank=blank, zero_infinity=zero_infinity),)


def mse(e: Emission, x: SSAValue, y: SSAValue, reduction: int = MEAN) -> SSAValue:
    difference = e.emit(SubOp, x, y)
    return _reduced(e, e.emit(MulOp, difference, difference), reduction)


def mse_backward(e: Emission, grad: SSAValue, x: SSAValue, y: SSAValue, reduction: int) -> SSAValue:
    factor = 2 / prod(shape(x)) if reduction == MEAN else 2
    slope = e.emit(MulOp, e.emit(SubOp, x, y), e.full(factor, dtype(x)))
    return e.emit(MulOp, slope, e.expand(grad, shape(x)))


def bce_with_logits(
    e: Emission,
    x: SSAValue,
    y: SSAValue,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = MEAN,
) -> SSAValue:
    """(1 - y) x + log(1 + exp(-x))."""
    if weight is not None or pos_weight is not None:
        rule = "binary_cross_entropy_with_logits has no weights"
        raise unsupported(rule, "some", "weight the losses of reduction='none'")
    left = e.emit(MulOp, e.emit(SubOp, e.full(1, dtype(x)), y), x)
    return _reduced(e, e.emit(AddOp, left, e.emit(SoftplusOp, e.emit(NegOp, x))), reduction)


def _reduced(e: Emission, x: SSAValue, reduction: int) -> SSAValue:
    if reduction not in (MEAN, SUM):
        return x
    total = e.emit(SumOp, x, dims=tuple(range(rank(x))), keepdim=False)
    return total if reduction == SUM else e.emit(DivOp, total, e.full(prod(shape(x)), dtype(x)))


EMITTERS: dict[str, Emitter] = {
    "aten._softmax.default": softmax,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten._log_softmax.default": log_softmax,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
    "aten.nll_loss_forward.default": packed(nll_loss),
    "aten.nll_loss_backward.default": packed(nll_loss_backward),
    "csrun::cross_entropy": cross_entropy,
    "csrun::cross_entropy_backward": cross_entropy_backward,
    "csrun::ctc_loss": ctc_loss,
    "csrun::ctc_loss_backward": ctc_loss_backward,
    "aten.mse_loss.default": mse,
    "aten.mse_loss_backward.default": mse_backward,
    "aten.binary_cross_entropy_with_logits.default": bce_with_logits,
}
