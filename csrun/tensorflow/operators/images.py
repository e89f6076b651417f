"""Convolutions and pooling of images, with channels last or first."""

from typing import Any, NamedTuple

import numpy as np

from csrun import nn
from csrun.cirh.ops.convolution import ConvolutionBackwardInputOp, ConvolutionOp
from csrun.cirh.ops.pooling import AvgPool2dOp, MaxPool2dOp
from csrun.nn import Tensor
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value
from csrun.tensorflow.operators.shape import padded

Pair = tuple[int, int]
ROWS, COLUMNS = 2, 3  # axes of images with channels first


class ImageWindows(NamedTuple):
    """Windows over rows and columns, and the padding of an image that they reach."""

    size: Pair
    stride: Pair
    dilation: Pair
    margins: tuple[Pair, Pair]

    @classmethod
    def of(
        cls, op: Any, image: tuple[int, ...], size: Pair, dilation: Pair = (1, 1)
    ) -> "ImageWindows":
        """Windows of an operator over images [N, C, H, W]."""
        stride = _of_image(op, op.get_attr("strides"))
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
        padding = op.get_attr("padding")
        if padding == b"EXPLICIT":
            given = op.get_attr("explicit_paddings")
            first = 4 if _has_channels_first(op) else 2
            above, below, left, right = given[first : first + 4]
            margins = ((above, below), (left, right))
        elif padding == b"SAME":
            rows, columns = zip(image[ROWS:], reach, stride, strict=True)
            margins = (_same(*rows), _same(*columns))
        else:
            margins = ((0, 0), (0, 0))
        return cls(size, stride, dilation, margins)

    def around(self, e: GraphEmission, x: Tensor, filling: float) -> tuple[Tensor, Pair]:
        """Return images padded as far as CIRH's symmetric padding cannot, and that symmetric
        padding.
        """
        if all(before == after for before, after in self.margins):
            return x, (self.margins[0][0], self.margins[1][0])
        for axis, (before, after) in zip((ROWS, COLUMNS), self.margins, strict=True):
            x = padded(e, x, axis, before, after, filling)
        return x, (0, 0)

    def counts(self, image: tuple[int, ...]) -> Any:
        """Return the number of positions of each window inside the image. Shapes: [H', W']"""
        sides = []
        for n, k, s, (before, after) in zip(
            image[ROWS:], self.size, self.stride, self.margins, strict=True
        ):
            starts = np.arange(0, n + before + after - k + 1, s) - before
            sides.append(np.minimum(starts + k, n) - np.maximum(starts, 0))
        return np.outer(*sides)


def _same(n: int, reach: int, stride: int) -> Pair:
    """Return padding before and after, for one output per stride; the odd one comes after."""
    total = max((-(-n // stride) - 1) * stride + reach - n, 0)
    return total // 2, total - total // 2


def _has_channels_first(op: Any) -> bool:
    return bool(op.get_attr("data_format") == b"NCHW")


def _of_image(op: Any, values: Any) -> Pair:
    """Return the two of four numbers for rows and columns."""
    first = 2 if _has_channels_first(op) else 1
    return int(values[first]), int(values[first + 1])


def channels_first(e: GraphEmission, op: Any, x: Value) -> Tensor:
    """Return images with the channels before the rows and columns."""
    value = e.tensor(x)
    return value if _has_channels_first(op) else nn.transpose(value, (0, 3, 1, 2))


def as_given(op: Any, x: Tensor) -> Tensor:
    """Return images with channels first in the operator's format."""
    return x if _has_channels_first(op) else nn.transpose(x, (0, 2, 3, 1))


def _convolved(e: GraphEmission, op: Any, x: Value, kernel: Tensor, groups: int) -> Value:
    """Shapes: kernel [KH, KW, C / groups, O]"""
    images = channels_first(e, op, x)
    size, dilation = kernel.shape[:2], _of_image(op, op.get_attr("dilations"))
    windows = ImageWindows.of(op, images.shape, (size[0], size[1]), dilation)
    images, padding = windows.around(e, images, 0.0)
    options: dict[str, Any] = {"stride": windows.stride, "dilation": dilation, "padding": padding}
    weight = nn.transpose(kernel, (3, 2, 0, 1))
    return as_given(op, e.emit(ConvolutionOp, images, weight, groups=groups, **options))


def conv_2d(e: GraphEmission, op: Any, x: Value, kernel: Value) -> Value:
    """Shapes: x [N, H, W, C], kernel [KH, KW, C / groups, O] -> [N, H', W', O]"""
    weight, channels = e.tensor(kernel), e.tensor(x).shape[1 if _has_channels_first(op) else 3]
    return _convolved(e, op, x, weight, channels // weight.shape[2])


def depthwise_conv_2d(e: GraphEmission, op: Any, x: Value, kernel: Value) -> Value:
    """Shapes: x [N, H, W, C], kernel [KH, KW, C, M] -> [N, H', W', C M]"""
    weight = e.tensor(kernel)
    *size, channels, multiplier = weight.shape
    weight = nn.reshape(weight, (*size, 1, channels * multiplier))
    return _convolved(e, op, x, weight, channels)


def transposed_conv_2d(e: GraphEmission, op: Any, sizes: Value, kernel: Value, x: Value) -> Value:
    """Transposed convolution: the gradient of the images of a convolution.

    Shapes: sizes [4], kernel [KH, KW, O, C], x [N, H, W, C] -> [N, H', W', O]
    Source: tf.raw_ops.Conv2DBackpropInput
    """
    images, weight = channels_first(e, op, x), e.tensor(kernel)
    wanted = e.integers(sizes, "the shape of a transposed convolution")
    shape = (images.shape[0], weight.shape[2], *_of_image(op, wanted))
    size, dilation = (weight.shape[0], weight.shape[1]), _of_image(op, op.get_attr("dilations"))
    windows = ImageWindows.of(op, shape, size, dilation)
    options: dict[str, Any] = {"stride": windows.stride, "dilation": dilation, "groups": 1}
    (above, below), (left, right) = windows.margins
    is_even = above == below and left == right
    padded_shape = (*shape[:2], shape[2] + above + below, shape[3] + left + right)
    out = e.emit(
        ConvolutionBackwardInputOp,
        images,
        nn.transpose(weight, (3, 2, 0, 1)),
        input_size=shape if is_even else padded_shape,
        padding=(above, left) if is_even else (0, 0),
        **options,
    )
    if not is_even:
        out = out[:, :, above : above + shape[2], left : left + shape[3]]
    return as_given(op, out)


def max_pool(e: GraphEmission, op: Any, x: Value) -> Value:
    """Maximum of each window; padding never wins."""
    images = channels_first(e, op, x)
    windows = ImageWindows.of(op, images.shape, _of_image(op, op.get_attr("ksize")))
    images, padding = windows.around(e, images, -np.inf)
    options: dict[str, Any] = {"kernel_size": windows.size, "stride": windows.stride}
    found = e.emit(MaxPool2dOp, images, padding=padding, dilation=(1, 1), **options)
    return as_given(op, found)


def avg_pool(e: GraphEmission, op: Any, x: Value) -> Value:
    """Mean of each window over the positions inside the image."""
    given = channels_first(e, op, x)
    windows = ImageWindows.of(op, given.shape, _of_image(op, op.get_attr("ksize")))
    images, padding = windows.around(e, given, 0.0)
    options: dict[str, Any] = {"kernel_size": windows.size, "stride": windows.stride}
    found = e.emit(AvgPool2dOp, images, padding=padding, count_include_pad=True, **options)
    if windows.margins != ((0, 0), (0, 0)):
        found = found * e.tensor(np.prod(windows.size) / windows.counts(given.shape))
    return as_given(op, found)


EMITTERS: dict[str, Emitter] = {
    "Conv2D": conv_2d,
    "Conv2DBackpropInput": transposed_conv_2d,
    "DepthwiseConv2dNative": depthwise_conv_2d,
    "MaxPool": max_pool,
    "AvgPool": avg_pool,
}
