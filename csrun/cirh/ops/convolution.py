"""Convolution over images, forward and backward, and the windows that it shares with pooling."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    Reads,
    Types,
    integer,
    ints,
    require_rank,
    require_same_dtype,
)
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.types import Tensor, dtype_of, is_float, shape_of, tensor_type, text_of, type_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Windows over an image; each pair is rows first. Window o starts at o stride - padding, and
    reads `size` pixels, `dilation` apart.
    """

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)

    def over(self, image: Pair) -> Pair:
        """Return the number of windows over an image, rows and columns.

        Raises: VerifyException if a window does not fit the padded image
        """
        fields = (image, self.size, self.stride, self.padding, self.dilation)
        counts = [_count(*axis) for axis in zip(*fields, strict=True)]
        return counts[0], counts[1]


def _count(length: int, size: int, stride: int, padding: int, dilation: int) -> int:
    if min(size, stride, dilation) < 1 or padding < 0:
        raise VerifyException(
            f"kernel_size, stride and dilation must be >= 1 and padding >= 0, got {size}, "
            f"{stride}, {dilation} and {padding}"
        )
    left = length + 2 * padding - dilation * (size - 1) - 1
    if left < 0:
        raise VerifyException(
            f"a window of {dilation * (size - 1) + 1} pixels does not fit {length} pixels with "
            f"padding {padding}"
        )
    return left // stride + 1


def pair(properties: Properties, name: str) -> Pair:
    """Return a property that is a number of rows and one of columns."""
    values = ints(properties, name)
    if len(values) != 2:
        raise VerifyException(f"{name} must be a pair (rows, columns), got {list(values)}")
    return values[0], values[1]


def windows_of(properties: Properties, size: Pair) -> Windows:
    """Return the windows of a convolution whose kernel has this size."""
    stride, padding, dilation = (pair(properties, n) for n in ("stride", "padding", "dilation"))
    return Windows(size, stride, padding, dilation)


class ConvolvingOp(CirhOp):
    """Properties of a convolution and its gradients; channel groups are independent."""

    READS: ClassVar = Reads.CONTIGUOUS

    stride = prop_def(DenseArrayBase)
    padding = prop_def(DenseArrayBase)
    dilation = prop_def(DenseArrayBase)
    groups = prop_def(IntegerAttr)


@irdl_op_definition
class ConvolutionOp(ConvolvingOp):
    """out[o] = bias[o] + sum over the channels of o's group, and over a window, of x weight.

    It is ATen's convolution over two axes, not transposed.

    Source: LeCun et al. 1998, Gradient-based learning applied to document recognition, section II
    """

    name = "cirh.convolution"
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    bias = var_operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] -> [N, O, H', W']."""
        x, weight, *bias = types
        require_same_dtype(types)
        out = convolved(x, shape_of(weight), properties)
        if len(bias) > 1 or any(shape_of(b) != out[1:2] for b in bias):
            found = ", ".join(map(text_of, bias))
            raise VerifyException(f"the bias must have shape {list(out[1:2])}, got {found}")
        return tensor_type(out, dtype_of(x))

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of x, weight and bias, as needed; an input image has none."""
        options = back.options()
        x, weight, *bias = back.operands
        found: list[SSAValue | None] = [None, None, *(None for _ in bias)]
        if back.wanted[0]:
            size = shape_of(type_of(x))
            kind = ConvolutionBackwardInputOp
            found[0] = back.emit(kind, back.grad, weight, input_size=size, **options)
        if back.wanted[1]:
            size = shape_of(type_of(weight))
            of_weight = ConvolutionBackwardWeightOp
            found[1] = back.emit(of_weight, back.grad, x, weight_size=size, **options)
        if any(back.wanted[2:]):
            found[2] = back.emit(SumOp, back.grad, dims=(0, 2, 3), keepdim=False)
        return found

    def compute(self, x: Any, weight: Any, *bias: Any) -> Any:
        """Products and sums over groups of channels and windows."""
        seen = grouped(
            unfold_windows(windows_of(self.properties, weight.shape[2:]), x), self.properties
        )
        kernels = _by_group(weight, self.properties)
        out = np.einsum("ngchwij,gocij->ngohw", seen, kernels)
        out = out.reshape(len(x), len(weight), *out.shape[3:])
        return out + bias[0][:, None, None] if bias else out


@irdl_op_definition
class ConvolutionBackwardInputOp(ConvolvingOp):
    """The gradient of the convolved images, which is also a transposed convolution of `grad`."""

    name = "cirh.convolution_backward_input"
    grad = operand_def(TensorType)
    weight = operand_def(TensorType)
    input_size = prop_def(DenseArrayBase)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [N, O, H', W'], weight [O, C / groups, KH, KW] -> `input_size`, [N, C, H, W]."""
        grad, weight = types
        require_same_dtype(types)
        x = tensor_type(ints(properties, "input_size"), dtype_of(grad))
        require_convolved(grad, x, shape_of(weight), properties)
        return x

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of a transposed convolution, which this operator is."""
        options, (grad, weight) = back.options(), back.operands
        del options["input_size"]
        found: list[SSAValue | None] = [None, None]
        if back.wanted[0]:
            found[0] = back.emit(ConvolutionOp, back.grad, weight, **options)
        if back.wanted[1]:
            size = shape_of(type_of(weight))
            of_weight = ConvolutionBackwardWeightOp
            found[1] = back.emit(of_weight, grad, back.grad, weight_size=size, **options)
        return found

    def compute(self, grad: Any, weight: Any) -> Any:
        """Sum over the windows that contain each pixel."""
        windows = windows_of(self.properties, weight.shape[2:])
        shape = ints(self.properties, "input_size")
        kernels = _by_group(weight, self.properties)
        seen = np.einsum("ngohw,gocij->ngchwij", grouped(grad, self.properties), kernels)
        return fold_windows(
            windows, seen.reshape(*shape[:2], *seen.shape[3:]), (shape[2], shape[3])
        )


@irdl_op_definition
class ConvolutionBackwardWeightOp(ConvolvingOp):
    """The gradient of a convolution's weight."""

    name = "cirh.convolution_backward_weight"
    ADDS_UP: ClassVar = True
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    weight_size = prop_def(DenseArrayBase)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [N, O, H', W'], x [N, C, H, W] -> `weight_size`, [O, C / groups, KH, KW]."""
        grad, x = types
        require_same_dtype(types)
        weight = ints(properties, "weight_size")
        require_convolved(grad, x, weight, properties)
        return tensor_type(weight, dtype_of(x))

    def compute(self, grad: Any, x: Any) -> Any:
        """Sums over samples and positions."""
        size = ints(self.properties, "weight_size")
        windows = windows_of(self.properties, (size[2], size[3]))
        seen = grouped(unfold_windows(windows, x), self.properties)
        found = np.einsum("ngohw,ngchwij->gocij", grouped(grad, self.properties), seen)
        return found.reshape(size)


def convolved(x: Tensor, weight: tuple[int, ...], properties: Properties) -> tuple[int, ...]:
    """Return the shape of a convolution.

    Raises: VerifyException if operands and properties do not fit
    """
    require_images(x)
    if len(weight) != 4:
        raise VerifyException(f"the weight must have 4 axes, got shape {list(weight)}")
    (samples, channels, *image), groups = shape_of(x), integer(properties, "groups")
    if groups < 1 or weight[0] % groups or weight[1] * groups != channels:
        raise VerifyException(
            f"the weight must be [outputs, {channels} / groups, rows, columns] with outputs "
            f"divisible by groups, got {list(weight)} and {groups} groups"
        )
    windows = windows_of(properties, (weight[2], weight[3]))
    return samples, weight[0], *windows.over((image[0], image[1]))


def require_convolved(
    grad: Tensor, x: Tensor, weight: tuple[int, ...], properties: Properties
) -> None:
    """Raises: VerifyException unless the gradient has the shape of the convolution"""
    expected = convolved(x, weight, properties)
    if shape_of(grad) != expected:
        raise VerifyException(
            f"the gradient must have shape {list(expected)}, got {list(shape_of(grad))}"
        )


def require_images(x: Tensor) -> None:
    """Raises: VerifyException unless x is [N, C, H, W] of floats"""
    require_rank(x, 4, "images [samples, channels, rows, columns]")
    if not is_float(x):
        raise VerifyException(f"images must be floating point, got {dtype_of(x)}")


def unfold_windows(windows: Windows, x: Any, fill: float = 0) -> Any:
    """Return the pixels that each window contains.

    Shapes: x [N, C, H, W] -> [N, C, H', W', KH, KW]
    """
    rows, columns = windows.padding
    around = ((0, 0), (0, 0), (rows, rows), (columns, columns))
    padded = np.pad(x, around, constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for k, d in zip(windows.size, windows.dilation, strict=True))
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    (down, right), (down_in, right_in) = windows.stride, windows.dilation
    return found[:, :, ::down, ::right, ::down_in, ::right_in]


def fold_windows(windows: Windows, seen: Any, image: Pair) -> Any:
    """Return for each pixel the sum over the windows that contain it.

    Shapes: seen [N, C, H', W', KH, KW] -> [N, C, H, W]
    """
    rows, columns = windows.padding
    height, width = image[0] + 2 * rows, image[1] + 2 * columns
    padded = np.zeros((*seen.shape[:2], height, width), seen.dtype)
    (down, right), (down_in, right_in) = windows.stride, windows.dilation
    counts = seen.shape[2:4]
    for i, j in np.ndindex(*windows.size):
        above, left = i * down_in, j * right_in
        below, behind = above + (counts[0] - 1) * down + 1, left + (counts[1] - 1) * right + 1
        padded[:, :, above:below:down, left:behind:right] += seen[..., i, j]
    return padded[:, :, rows : height - rows, columns : width - columns]


def grouped(x: Any, properties: Properties) -> Any:
    """View channels as groups of channels."""
    groups = integer(properties, "groups")
    return x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])


def _by_group(weight: Any, properties: Properties) -> Any:
    groups = integer(properties, "groups")
    return weight.reshape(groups, len(weight) // groups, *weight.shape[1:])


OPS = (ConvolutionOp, ConvolutionBackwardInputOp, ConvolutionBackwardWeightOp)
