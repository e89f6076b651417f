"""Pooling: the maximum or mean of each window over an image, forward and backward."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import CirhOp, Properties, Reads, Types, integer, ints
from csrun.cirh.ops.convolution import Windows, fold_windows, pair, require_images, unfold_windows
from csrun.cirh.types import (
    Tensor,
    dtype_of,
    is_integer,
    shape_of,
    tensor_type,
    text_of,
    type_of,
)

OFFSET = "int32"


class PoolingOp(CirhOp):
    """Properties of pooling operators and their gradients; windows that exceed the padding are
    dropped.
    """

    READS: ClassVar = Reads.CONTIGUOUS

    kernel_size = prop_def(DenseArrayBase)
    stride = prop_def(DenseArrayBase)
    padding = prop_def(DenseArrayBase)

    @property
    def windows(self) -> Windows:
        """Windows that slide over the images."""
        return pool_windows(self.properties)

    def summed(self, seen: Any) -> Any:
        """Return for each pixel of the input the sum over windows.

        Shapes: seen [N, C, H', W', KH KW] -> [N, C, H, W]
        """
        _, _, *image = ints(self.properties, "input_size")
        shaped = seen.reshape(*seen.shape[:4], *self.windows.size)
        return fold_windows(self.windows, shaped, (image[0], image[1]))


@irdl_op_definition
class MaxPool2dOp(PoolingOp):
    """The maximum of each window, and its pixel's index in the window; padding never is.

    The first of equal values is selected, and NaN before numbers, as in ATen's
    max_pool2d_with_indices. Pixels of a window are numbered row by row.
    """

    name = "cirh.max_pool2d_with_offsets"
    x = operand_def(TensorType)
    dilation = prop_def(DenseArrayBase)
    out = result_def(TensorType)
    offsets = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[N, C, H, W] -> twice [N, C, H', W']."""
        shape = pooled(types[0], properties)
        return tensor_type(shape, dtype_of(types[0])), tensor_type(shape, OFFSET)

    def gradients(self, back: Backward) -> Gradients:
        """g at the selected pixels."""
        size = shape_of(type_of(self.x))
        options = back.options()
        return [back.emit(MaxPool2dBackwardOp, back.grad, self.offsets, input_size=size, **options)]

    def compute(self, x: Any) -> tuple[Any, ...]:
        """The maximum, and its index in the window; the last NaN if there are any."""
        seen = _flat(unfold_windows(self.windows, x, -np.inf))
        is_padding = _flat(unfold_windows(self.windows, np.zeros_like(x), 1)) == 1
        largest = np.where(is_padding, np.nan, seen) == seen.max(-1, keepdims=True)
        last_nan = seen.shape[-1] - 1 - np.isnan(seen)[..., ::-1].argmax(-1)
        offsets = np.where(np.isnan(seen).any(-1), last_nan, largest.argmax(-1))
        return seen.max(-1), offsets.astype(OFFSET)


@irdl_op_definition
class MaxPool2dBackwardOp(PoolingOp):
    """For each pixel the sum over the windows whose maximum it is."""

    name = "cirh.max_pool2d_with_offsets_backward"
    grad = operand_def(TensorType)
    offsets = operand_def(TensorType)
    dilation = prop_def(DenseArrayBase)
    input_size = prop_def(DenseArrayBase)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient and offsets [N, C, H', W'] -> `input_size`, [N, C, H, W]."""
        grad, offsets = types
        if shape_of(offsets) != shape_of(grad) or not is_integer(offsets):
            raise VerifyException(
                f"offsets must be integers of shape {text_of(grad)}, "
                f"got {dtype_of(offsets)} of {text_of(offsets)}"
            )
        return _unpooled(grad, properties)

    def compute(self, grad: Any, offsets: Any) -> Any:
        """The gradient at the selected pixel."""
        pixels = np.arange(self.windows.size[0] * self.windows.size[1])
        seen = np.where(offsets[..., None] == pixels, grad[..., None], 0)
        return self.summed(seen.astype(grad.dtype))


@irdl_op_definition
class AvgPool2dOp(PoolingOp):
    """The mean of each window, over all its pixels or without padding."""

    name = "cirh.avg_pool2d"
    x = operand_def(TensorType)
    count_include_pad = prop_def(BoolAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[N, C, H, W] -> [N, C, H', W']."""
        return tensor_type(pooled(types[0], properties), dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """g divided by the window's count, at each of its pixels."""
        size = shape_of(type_of(self.x))
        return [back.emit(AvgPool2dBackwardOp, back.grad, input_size=size, **back.options())]

    def compute(self, x: Any) -> Any:
        """The sum over a window, over its count."""
        return _flat(unfold_windows(self.windows, x)).sum(-1) / _counts(self, x)


@irdl_op_definition
class AvgPool2dBackwardOp(PoolingOp):
    """For each pixel the sum of its shares in the windows that contain it."""

    name = "cirh.avg_pool2d_backward"
    grad = operand_def(TensorType)
    count_include_pad = prop_def(BoolAttr)
    input_size = prop_def(DenseArrayBase)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [N, C, H', W'] -> `input_size`, [N, C, H, W]."""
        return _unpooled(types[0], properties)

    def compute(self, grad: Any) -> Any:
        """An equal share to each pixel."""
        shape = ints(self.properties, "input_size")
        share = grad / _counts(self, np.zeros(shape, grad.dtype))
        pixels = self.windows.size[0] * self.windows.size[1]
        return self.summed(np.repeat(share[..., None], pixels, axis=-1))


def pool_windows(properties: Properties) -> Windows:
    """Return the windows of a pooling."""
    size, stride, padding = (pair(properties, n) for n in ("kernel_size", "stride", "padding"))
    dilation = pair(properties, "dilation") if "dilation" in properties else (1, 1)
    return Windows(size, stride, padding, dilation)


def pooled(x: Tensor, properties: Properties) -> tuple[int, ...]:
    """Return the shape of a pooling.

    Raises: VerifyException if windows do not fit, or may contain only padding
    """
    require_images(x)
    windows = pool_windows(properties)
    if any(2 * p > n for p, n in zip(windows.padding, windows.size, strict=True)):
        raise VerifyException(
            f"padding must be at most half of kernel_size, got {list(windows.padding)} and "
            f"{list(windows.size)}"
        )
    samples, channels, rows, columns = shape_of(x)
    return samples, channels, *windows.over((rows, columns))


def _unpooled(grad: Tensor, properties: Properties) -> Tensor:
    x = tensor_type(ints(properties, "input_size"), dtype_of(grad))
    expected = pooled(x, properties)
    if shape_of(grad) != expected:
        raise VerifyException(f"the gradient must have shape {list(expected)}, got {text_of(grad)}")
    return x


def _counts(op: AvgPool2dOp | AvgPool2dBackwardOp, x: Any) -> Any:
    """Return how many pixels count in each window."""
    fill = 1.0 if integer(op.properties, "count_include_pad") else 0.0
    return _flat(unfold_windows(op.windows, np.ones_like(x), fill)).sum(-1)


def _flat(seen: Any) -> Any:
    """Return the pixels of a window as one row."""
    return seen.reshape(*seen.shape[:4], seen.shape[4] * seen.shape[5])


OPS = (MaxPool2dOp, MaxPool2dBackwardOp, AvgPool2dOp, AvgPool2dBackwardOp)
