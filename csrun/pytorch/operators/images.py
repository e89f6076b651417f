"""Convolution and pooling over images [N, C, H, W]."""

from dataclasses import replace
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from csrun.cirh.ops import convolution as ops
from csrun.cirh.ops import pooling
from csrun.cirh.ops.arithmetic import AddOp, MulOp, SubOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.rounding import FloorDivideOp
from csrun.cirh.ops.shape import SliceOp
from csrun.pytorch.operators.base import (
    BackwardOnly,
    Emission,
    Emitter,
    dtype,
    packed,
    rank,
    shape,
    unsupported,
)
from csrun.pytorch.operators.indexing import pad
from csrun.pytorch.operators.resampling import (
    AvgPoolOptions,
    adaptive_means,
    adaptive_means_backward,
)
from csrun.pytorch.record.recording import TensorKind


class ConvolutionOptions(NamedTuple):
    """ATen's options of a convolution."""

    stride: Any
    padding: Any
    dilation: Any
    transposed: bool
    output_padding: Any
    groups: int

    def properties(self, axes: int) -> dict[str, Any]:
        """Properties of CIRH's convolution; one of 1 axis is over images of one row."""
        if axes not in (1, 2):  # one in 3-D is recorded as one in 2-D
            remedy = "call torch.nn.functional.conv3d or conv_transpose3d"
            raise unsupported("torch.convolution must be 1-D or 2-D", f"{axes}-D", remedy)
        return {
            "stride": _pair(self.stride, axes, 1),
            "padding": _pair(self.padding, axes, 0),
            "dilation": _pair(self.dilation, axes, 1),
            "groups": self.groups,
        }


class MaxPoolOptions(NamedTuple):
    """ATen's options of a max pooling."""

    kernel_size: Any
    stride: Any = ()
    padding: Any = (0, 0)
    dilation: Any = (1, 1)
    ceil_mode: bool = False


def convolution(
    e: Emission, x: SSAValue, weight: SSAValue, bias: SSAValue | None, options: ConvolutionOptions
) -> SSAValue:
    """Convolution in 1-D, as images of one row, or 2-D; transposed: the gradient of a plain one."""
    properties = options.properties(rank(x) - 2)
    operands = [_image(e, v) for v in (x, weight)]
    if options.transposed:
        more, stride = options.output_padding, options.stride
        if any(own >= step for own, step in zip(more, stride, strict=False)):
            rule = "output_padding of a transposed convolution must be less than its stride"
            got = f"{list(more)} and {list(stride)}"
            raise unsupported(rule, got, "pad the result with torch.nn.functional.pad")
        size = e.sizes if rank(x) == 4 else (*e.sizes[:2], 1, *e.sizes[2:])
        kind = ops.ConvolutionBackwardInputOp
        found = e.emit(kind, *operands, input_size=size, **properties)
        if bias is not None:
            found = e.emit(AddOp, found, e.view(bias, (*shape(bias), 1, 1)))
        return e.view(found, e.sizes)
    biases = [] if bias is None else [bias]
    return e.view(e.emit(ops.ConvolutionOp, *operands, *biases, **properties), e.sizes)


def convolution_backward(
    e: Emission,
    grad: SSAValue,
    x: SSAValue,
    weight: SSAValue,
    bias_sizes: Any,
    options: ConvolutionOptions,
    wanted: Any,
) -> tuple[SSAValue | None, ...]:
    properties, transposed = options.properties(rank(x) - 2), options.transposed
    grads, images, kernels = (_image(e, v) for v in (grad, x, weight))
    found: list[SSAValue | None] = [None, None, None]
    if wanted[0] and transposed:
        own = e.emit(ops.ConvolutionOp, grads, kernels, **properties)
        found[0] = e.view(own, shape(x))
    elif wanted[0]:
        kind, size = ops.ConvolutionBackwardInputOp, shape(images)
        own = e.emit(kind, grads, kernels, input_size=size, **properties)
        found[0] = e.view(own, shape(x))
    if wanted[1]:
        of_weight, size = ops.ConvolutionBackwardWeightOp, shape(kernels)
        seen = (images, grads) if transposed else (grads, images)
        own = e.emit(of_weight, *seen, weight_size=size, **properties)
        found[1] = e.view(own, shape(weight))
    if wanted[2]:
        found[2] = e.emit(SumOp, grads, dims=(0, 2, 3), keepdim=False)
    return tuple(found)


def _image(e: Emission, x: SSAValue) -> SSAValue:
    return e.view(x, (*shape(x)[:2], 1, *shape(x)[2:])) if rank(x) == 3 else x


def _pair(sizes: Any, axes: int, other: int) -> tuple[int, int]:
    each = list(sizes) * (axes if len(sizes) == 1 else 1)
    return (other, each[0]) if axes == 1 else (each[0], each[1])


def accept_single_image(emitter: Emitter) -> Emitter:
    """Have a pooling emitter take a single image [C, H, W], too."""

    def emit(e: Emission, x: SSAValue, *options: Any, **more: Any) -> Any:
        if rank(x) != 3:
            return emitter(e, x, *options, **more)
        kinds = e.kinds
        e.kinds = tuple(TensorKind((1, *k.shape), k.dtype) for k in kinds)
        images = [_as_batch(e, o) for o in options]
        found: Any = emitter(e, _as_batch(e, x), *images, **more)
        e.kinds = kinds
        if isinstance(found, tuple):
            out, numbers = found
            return _single(e, out), replace(numbers, emit=lambda: _single(e, numbers.emit()))
        return _single(e, found)

    return emit


def _single(e: Emission, x: SSAValue) -> SSAValue:
    return e.view(x, shape(x)[1:])


def _as_batch(e: Emission, x: Any) -> Any:
    return e.view(x, (1, *shape(x))) if isinstance(x, SSAValue) else x


def max_pool(e: Emission, x: SSAValue, options: MaxPoolOptions) -> tuple[SSAValue, BackwardOnly]:
    """Maximum, and for the backward pass its offset in the window instead of ATen's index."""
    windows = _max_windows(x, options)
    columns = shape(x)[3]
    x = pad(e, x, _ceil_padding(x, windows, e.sizes), -inf) if options.ceil_mode else x
    out, offsets = e.emit_all(pooling.MaxPool2dOp, x, **windows)
    return out, BackwardOnly(offsets, lambda: _pixel_numbers(e, offsets, windows, columns))


def _pixel_numbers(
    e: Emission, offsets: SSAValue, windows: dict[str, Any], columns: int
) -> SSAValue:
    """Emit the numbers of pixels in their image from those in their window.

    Shapes: offsets [N, C, H', W'] -> the same
    """
    first = [
        np.arange(size) * stride - padding
        for size, stride, padding in zip(
            shape(offsets)[2:], windows["stride"], windows["padding"], strict=True
        )
    ]
    corner = e.constant((first[0][:, None] * columns + first[1])[None, None])
    (_, width), (down, right) = windows["kernel_size"], windows["dilation"]

    def times(x: SSAValue, number: int) -> SSAValue:
        return e.emit(MulOp, x, e.full(number, "int64"))

    offsets = e.cast(offsets, "int64")
    row = e.emit(FloorDivideOp, offsets, e.full(width, "int64"))
    column = e.emit(SubOp, offsets, times(row, width))
    place = e.emit(AddOp, times(row, down * columns), times(column, right))
    return e.emit(AddOp, place, corner)


def max_pool_backward(
    e: Emission, grad: SSAValue, x: SSAValue, options: MaxPoolOptions, offsets: BackwardOnly
) -> SSAValue:
    windows, padding = _max_windows(x, options), _NOTHING
    if options.ceil_mode:
        padding = _ceil_padding(x, windows, shape(grad))
    size = _padded_sizes(x, padding)
    found = e.emit(pooling.MaxPool2dBackwardOp, grad, offsets.value, input_size=size, **windows)
    return _crop(e, found, shape(x))


def avg_pool(e: Emission, x: SSAValue, options: AvgPoolOptions) -> SSAValue:
    windows = _windows(x, options)
    if not options.ceil_mode and options.divisor_override is None:
        counts = options.count_include_pad
        return e.emit(pooling.AvgPool2dOp, x, count_include_pad=counts, **windows)
    shares = _mean_factors(x, windows, e.sizes, options)
    x = pad(e, x, _ceil_padding(x, windows, e.sizes))
    means = e.emit(pooling.AvgPool2dOp, x, count_include_pad=True, **windows)
    return e.emit(MulOp, means, e.constant(shares.astype(dtype(x))))


def avg_pool_backward(
    e: Emission, grad: SSAValue, x: SSAValue, options: AvgPoolOptions
) -> SSAValue:
    windows, kind = _windows(x, options), pooling.AvgPool2dBackwardOp
    if not options.ceil_mode and options.divisor_override is None:
        windows |= {"input_size": shape(x), "count_include_pad": options.count_include_pad}
        return e.emit(kind, grad, **windows)
    shares = _mean_factors(x, windows, shape(grad), options)
    windows |= {"input_size": _padded_sizes(x, _ceil_padding(x, windows, shape(grad)))}
    grad = e.emit(MulOp, grad, e.constant(shares.astype(dtype(x))))
    return _crop(e, e.emit(kind, grad, count_include_pad=True, **windows), shape(x))


def adaptive_pool(e: Emission, x: SSAValue, sizes: Any) -> SSAValue:
    window = _equal_window(x, sizes)
    if window is None:
        return adaptive_means(e, x, sizes)
    return e.view(avg_pool(e, x, AvgPoolOptions(window)), e.sizes)


def adaptive_pool_backward(e: Emission, grad: SSAValue, x: SSAValue) -> SSAValue:
    window = _equal_window(x, shape(grad)[-2:])
    if window is None:
        return adaptive_means_backward(2, e, grad, x)
    return avg_pool_backward(e, grad, x, AvgPoolOptions(window))


def _equal_window(x: SSAValue, sizes: Any) -> tuple[int, int] | None:
    """Return the window size that divides images into equal windows, if there is one."""
    rows, columns = shape(x)[-2:]
    if rank(x) != 4 or not all(sizes) or rows % sizes[0] or columns % sizes[1]:
        return None
    return rows // sizes[0], columns // sizes[1]


_NOTHING = (0, 0, 0, 0)


def _ceil_padding(x: SSAValue, windows: dict[str, Any], sizes: Any) -> tuple[int, int, int, int]:
    """Return the padding at the end of each axis by which all of ceil_mode's windows fit.

    Its last windows begin in the image or its padding, and may end beyond.
    """
    spans = zip(
        shape(x)[2:],
        sizes[2:],
        *(windows[name] for name in ("kernel_size", "stride", "padding")),
        windows.get("dilation", (1, 1)),
        strict=True,
    )
    rows, columns = (
        max(0, (count - 1) * stride + dilation * (window - 1) + 1 - size - 2 * padding)
        for size, count, window, stride, padding, dilation in spans
    )
    return 0, columns, 0, rows


def _padded_sizes(x: SSAValue, padding: tuple[int, int, int, int]) -> tuple[int, ...]:
    samples, channels, rows, columns = shape(x)
    return samples, channels, rows + padding[3], columns + padding[1]


def _crop(e: Emission, x: SSAValue, sizes: tuple[int, ...]) -> SSAValue:
    """Emit images without the padding at their end."""
    for dim in (2, 3):
        if shape(x)[dim] > sizes[dim]:
            x = e.emit(SliceOp, x, dim=dim, start=0, end=sizes[dim], step=1)
    return x


def _mean_factors(
    x: SSAValue, windows: dict[str, Any], sizes: Any, options: AvgPoolOptions
) -> npt.NDArray[np.float64]:
    """Return the factors from means over whole windows to ATen's means.

    ATen counts padding where count_include_pad is set, and never what is beyond it.

    Shapes: [1, 1, H', W']
    """
    whole = prod(windows["kernel_size"])
    if options.divisor_override is not None:
        return np.full((1, 1, *sizes[2:]), whole / options.divisor_override)
    lengths = []
    for dim in (0, 1):
        window, stride, padding = (windows[n][dim] for n in ("kernel_size", "stride", "padding"))
        size, first = shape(x)[2 + dim], np.arange(sizes[2 + dim]) * stride - padding
        last = np.minimum(first + window, size + padding)
        if not options.count_include_pad:
            first, last = np.maximum(first, 0), np.minimum(last, size)
        lengths.append(last - first)
    return np.asarray(whole / (lengths[0][:, None] * lengths[1]))[None, None]


def _windows(x: SSAValue, options: MaxPoolOptions | AvgPoolOptions) -> dict[str, Any]:
    if rank(x) != 4:
        raise unsupported(
            "pooling needs images [N, C, H, W]", f"shape {list(shape(x))}", "reshape the images"
        )
    window, stride = _pair(options.kernel_size, 2, 1), options.stride
    return {
        "kernel_size": window,
        "stride": _pair(stride, 2, 1) if prod(stride) and len(stride) else window,
        "padding": _pair(options.padding, 2, 0),
    }


def _max_windows(x: SSAValue, options: MaxPoolOptions) -> dict[str, Any]:
    return {**_windows(x, options), "dilation": _pair(options.dilation, 2, 1)}


EMITTERS: dict[str, Emitter] = {
    "aten.convolution.default": packed(convolution),
    "aten.convolution_backward.default": packed(convolution_backward),
    "aten.max_pool2d_with_indices.default": accept_single_image(packed(max_pool)),
    "aten.max_pool2d_with_indices_backward.default": accept_single_image(packed(max_pool_backward)),
    "aten.avg_pool2d.default": accept_single_image(packed(avg_pool)),
    "aten.avg_pool2d_backward.default": accept_single_image(packed(avg_pool_backward)),
    "aten._adaptive_avg_pool2d.default": adaptive_pool,
    "aten._adaptive_avg_pool2d_backward.default": adaptive_pool_backward,
}
