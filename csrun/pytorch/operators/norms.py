"""Layer, RMS, group, weight and batch norms."""

from math import prod
from typing import Any, NamedTuple

from xdsl.ir import SSAValue

from csrun.cirh.ops import normalization as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, SubOp
from csrun.cirh.ops.batch_norm import NativeBatchNormBackwardOp, NativeBatchNormOp
from csrun.cirh.ops.padding import ValidSamplesOp
from csrun.cirh.ops.powers import RsqrtOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.types import tensor_type
from csrun.pytorch.operators.base import (
    BackwardOnly,
    Emission,
    Emitter,
    dtype,
    packed,
    shape,
    unsupported,
)

Wanted = SSAValue | None


class NormWeights(NamedTuple):
    """Weight and bias of a norm."""

    weight: Wanted
    bias: Wanted


class NormStatistics(NamedTuple):
    """Mean and 1 / standard deviation of a normalization."""

    mean: SSAValue
    rstd: SSAValue


class RunningStatistics(NamedTuple):
    """Running mean and variance."""

    mean: Wanted
    var: Wanted


class GroupSizes(NamedTuple):
    """Sizes of a group norm: samples, channels, elements of a channel, and groups of channels."""

    samples: int
    channels: int
    elements: int
    groups: int

    @property
    def rows(self) -> tuple[int, int]:
        """Shape with a row for each group of each sample."""
        return self.samples * self.groups, self.channels // self.groups * self.elements


def layer_norm(
    e: Emission, x: SSAValue, sizes: Any, weights: NormWeights, eps: float
) -> tuple[SSAValue, ...]:
    """Normalize rows of all normalized axes; statistics in PyTorch's shape, one per row."""
    rows, length = _rows(x, sizes)
    outer = shape(x)[: len(shape(x)) - len(sizes)]
    statistic = (*outer, *(1 for _ in sizes))
    flat = (_flat(e, given, n, x, length) for given, n in zip(weights, (1, 0), strict=True))
    found = e.emit_all(ops.NativeLayerNormOp, e.view(x, (rows, length)), *flat, eps=float(eps))
    return e.view(found[0], shape(x)), *(e.view(s, statistic) for s in found[1:])


def layer_norm_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    sizes: Any,
    statistics: NormStatistics,
    weights: NormWeights,
    wanted: Any,
) -> tuple[Wanted, ...]:
    rows, length = _rows(x, sizes)
    found = e.emit_all(
        ops.NativeLayerNormBackwardOp,
        *(e.view(v, (rows, length)) for v in (grad, x)),
        *(e.view(v, (rows, 1)) for v in statistics),
        _flat(e, weights.weight, 1, x, length),
    )
    shapes = (shape(x), tuple(sizes), tuple(sizes))
    return tuple(
        e.view(v, s) if want else None for v, s, want in zip(found, shapes, wanted, strict=True)
    )


def rms_norm(
    e: Emission, x: SSAValue, sizes: Any, weight: Wanted, eps: float | None
) -> tuple[SSAValue, ...]:
    rows, length = _rows(x, sizes)
    statistic = (*shape(x)[: len(shape(x)) - len(sizes)], *(1 for _ in sizes))
    if eps is None:
        eps = {"float32": 1.1920928955078125e-07, "float64": 2.220446049250313e-16}[dtype(x)]
    weights = _flat(e, weight, 1, x, length)
    out, rrms = e.emit_all(ops.FusedRmsNormOp, e.view(x, (rows, length)), weights, eps=float(eps))
    return e.view(out, shape(x)), e.view(rrms, statistic)


def rms_norm_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    sizes: Any,
    rrms: SSAValue,
    weight: Wanted,
    wanted: Any,
) -> tuple[Wanted, ...]:
    rows, length = _rows(x, sizes)
    operands = (*(e.view(v, (rows, length)) for v in (grad, x)), e.view(rrms, (rows, 1)))
    scale = _flat(e, weight, 1, x, length)
    found = e.emit_all(ops.FusedRmsNormBackwardOp, *operands, scale)
    shapes = (shape(x), tuple(sizes))
    return tuple(
        e.view(v, s) if want else None for v, s, want in zip(found, shapes, wanted, strict=True)
    )


def _rows(x: SSAValue, sizes: Any) -> tuple[int, int]:
    length = prod(sizes)
    return prod(shape(x)) // max(length, 1), length


def _flat(e: Emission, weight: Wanted, missing: float, x: SSAValue, length: int) -> SSAValue:
    if weight is None:
        return e.full(missing, dtype(x), (length,))
    return e.view(weight, (length,))


def batch_norm(
    e: Emission,
    x: SSAValue,
    running: RunningStatistics,
    weights: NormWeights,
    momentum: float,
    eps: float,
) -> tuple[SSAValue, ...]:
    """Batch norm in training. Shapes: x [N, C, ...]"""
    sample_axis, sizes = e.dependence(x).sample_axis, shape(x)
    if sample_axis.axis == 0:
        samples, rows = e.builder.leaf(ValidSamplesOp, tensor_type((), "int64")), sample_axis.count
    else:  # rows are not samples: all of them are valid
        samples, rows = e.full(sizes[0], "int64"), 1
    flat = e.view(x, (*sizes[:2], prod(sizes[2:])))
    operands = [
        _flat(e, given, missing, x, sizes[1])
        for given, missing in zip((*weights, *running), (1, 0, 0, 1), strict=True)
    ]
    options = {"rows": rows, "momentum": momentum, "eps": eps}
    out, saved_mean, rstd, *following = e.emit_all(
        NativeBatchNormOp, flat, *operands, samples, **options
    )
    e.saved[e.number] = (flat, saved_mean, rstd, operands[0], samples, rows)
    return e.view(out, sizes), *(following if running.mean is not None else [])


def batch_norm_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    running: RunningStatistics,
    weights: NormWeights,
    needs: tuple[bool, ...],
    **unused: Any,
) -> tuple[Wanted, ...]:
    flat, saved_mean, rstd, scale, samples, rows = e.saved[e.forward_number]
    found = e.emit_all(
        NativeBatchNormBackwardOp,
        e.view(grad, shape(flat)),
        flat,
        saved_mean,
        rstd,
        scale,
        samples,
        rows=rows,
    )
    each = (e.view(found[0], shape(x)), None, None, *found[1:])
    return tuple(v for v, need in zip(each, needs, strict=True) if need)


class RunningNorm(NamedTuple):
    """Running statistics of a batch norm, what ATen saved in training, and options."""

    mean: Wanted
    var: Wanted
    saved_mean: Any
    saved_rstd: Any
    training: bool
    eps: float


def running_norm(
    e: Emission,
    x: SSAValue,
    weights: NormWeights,
    running: RunningStatistics,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[SSAValue | BackwardOnly, ...]:
    """Batch norm by running statistics; ATen's saved ones are not computed."""
    norm = RunningNorm(*running, None, None, training, eps)
    scale, centred = _by_statistics(e, x, norm)
    out = e.emit(MulOp, centred, scale)
    for kind, given in zip((MulOp, AddOp), weights, strict=True):
        out = out if given is None else e.emit(kind, out, _by_channel(e, given, x))
    return out, BackwardOnly(scale), BackwardOnly(scale)


def running_norm_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    weight: Wanted,
    norm: RunningNorm,
    wanted: Any,
) -> tuple[Wanted, ...]:
    scale, centred = _by_statistics(e, x, norm)
    own = e.emit(MulOp, grad, scale)
    if weight is not None:
        own = e.emit(MulOp, own, _by_channel(e, weight, x))
    dims = tuple(d for d in range(len(shape(x))) if d != 1)
    slopes = (e.emit(MulOp, grad, e.emit(MulOp, centred, scale)), grad)
    sums = (e.emit(SumOp, slope, dims=dims, keepdim=False) for slope in slopes)
    return tuple(v if want else None for v, want in zip((own, *sums), wanted, strict=True))


def _by_statistics(e: Emission, x: SSAValue, norm: RunningNorm) -> tuple[SSAValue, SSAValue]:
    """Return 1 / standard deviation per channel, and the deviations from the mean."""
    if norm.training:
        raise unsupported(
            "a batch norm in training must be a call of torch.nn.functional.batch_norm",
            "the ATen operator",
            "call the function",
        )
    mean, var = norm.mean, norm.var
    assert mean is not None, "ATen has running statistics where it is not in training"
    assert var is not None, "ATen has running statistics where it is not in training"
    scale = e.emit(RsqrtOp, e.emit(AddOp, var, e.full(norm.eps, dtype(var))))
    return _by_channel(e, scale, x), e.emit(SubOp, x, _by_channel(e, mean, x))


def _by_channel(e: Emission, value: SSAValue, x: SSAValue) -> SSAValue:
    return e.view(value, (*shape(value), *(1 for _ in shape(x)[2:])))


def group_norm(
    e: Emission, x: SSAValue, weights: NormWeights, sizes: GroupSizes, eps: float
) -> tuple[SSAValue, ...]:
    """Layer norm per group of each sample, then weight and bias per channel."""
    kind = sizes.rows
    scales = (e.full(n, dtype(x), kind[1:]) for n in (1, 0))
    normal, mean, rstd = e.emit_all(ops.NativeLayerNormOp, e.view(x, kind), *scales, eps=float(eps))
    out = e.view(normal, shape(x))
    for op, given in zip((MulOp, AddOp), weights, strict=True):
        out = out if given is None else e.emit(op, out, _by_channel(e, given, x))
    return out, *(e.view(v, (sizes.samples, sizes.groups)) for v in (mean, rstd))


def group_norm_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    statistics: NormStatistics,
    weight: Wanted,
    sizes: GroupSizes,
    wanted: Any,
) -> tuple[Wanted, ...]:
    kind = sizes.rows
    mean, rstd = (e.view(v, (kind[0], 1)) for v in statistics)
    rows = e.view(x, kind)
    scaled = grad if weight is None else e.emit(MulOp, grad, _by_channel(e, weight, x))
    ones = e.full(1, dtype(x), kind[1:])
    operands = (e.view(scaled, kind), rows, mean, rstd, ones)
    own = e.emit(ops.NativeLayerNormBackwardOp, *operands)
    normal = e.view(e.emit(MulOp, e.emit(SubOp, rows, mean), rstd), shape(x))
    dims = tuple(d for d in range(len(shape(x))) if d != 1)
    slopes = (e.emit(MulOp, grad, normal), grad)
    sums = (e.emit(SumOp, slope, dims=dims, keepdim=False) for slope in slopes)
    each = zip((e.view(own, shape(x)), *sums), wanted, strict=True)
    return tuple(v if want else None for v, want in each)


def weight_norm_backward(
    e: Emission, grad: SSAValue, v: SSAValue, g: SSAValue, norms: SSAValue, dim: int
) -> tuple[SSAValue, ...]:
    """Gradients of v g / |v|: v gets the component across v, g the one along it."""
    others = tuple(d for d in range(len(shape(v))) if d != dim % len(shape(v)))
    along = e.emit(SumOp, e.emit(MulOp, grad, v), dims=others, keepdim=True)
    own = e.emit(MulOp, v, e.emit(DivOp, along, e.emit(MulOp, norms, norms)))
    across = e.emit(SubOp, grad, own)
    return e.emit(MulOp, across, e.emit(DivOp, g, norms)), e.emit(DivOp, along, norms)


EMITTERS: dict[str, Emitter] = {
    "aten._weight_norm_interface_backward.default": weight_norm_backward,
    "aten.native_layer_norm.default": packed(layer_norm),
    "aten.native_layer_norm_backward.default": packed(layer_norm_backward),
    "aten._fused_rms_norm.default": rms_norm,
    "aten._fused_rms_norm_backward.default": rms_norm_backward,
    "aten.native_group_norm.default": packed(group_norm),
    "aten.native_group_norm_backward.default": packed(group_norm_backward),
    "aten.native_batch_norm.default": packed(running_norm),
    "aten.native_batch_norm_backward.default": packed(running_norm_backward),
    "csrun::batch_norm": packed(batch_norm),
    "csrun::batch_norm_backward": packed(batch_norm_backward),
}
