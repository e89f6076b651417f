"""Discrete Fourier transforms; real and imaginary parts are separate tensors.

dims: transformed axes. scale: factor of the result, whose sums are not divided by their size.
Source: ATen's _fft_r2c, _fft_c2c and _fft_c2r
"""

from typing import Any

import numpy as np
from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, FloatAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import CirhOp, Properties, Types, integer, ints, number, require_same
from csrun.cirh.types import Tensor, dtype_of, is_float, shape_of, tensor_type, text_of


class FourierOp(CirhOp):
    """Properties of all transforms."""

    dims = prop_def(DenseArrayBase)
    scale = prop_def(FloatAttr)

    @property
    def axes(self) -> tuple[int, ...]:
        """Transformed axes."""
        return ints(self.properties, "dims")

    def scaled(self, x: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the real and imaginary parts, times the factor."""
        x = x * number(self.properties, "scale")
        return x.real.astype(dtype), x.imag.astype(dtype)


def _sizes_of(kind: Tensor, properties: Properties) -> tuple[list[int], int]:
    """Return a shape and the last transformed axis.

    Raises: VerifyException for axes that are not of the operand, or an operand without floats
    """
    sizes, dims = list(shape_of(kind)), ints(properties, "dims")
    if not is_float(kind) or not dims or any(not 0 <= d < len(sizes) for d in dims):
        raise VerifyException(f"axes {list(dims)} must be those of floats, got {text_of(kind)}")
    return sizes, dims[-1]


@irdl_op_definition
class FftR2cOp(FourierOp):
    """The transform of real numbers. onesided: only the first N // 2 + 1 of the last axis."""

    name = "cirh.fft_r2c"
    x = operand_def(TensorType)
    onesided = prop_def(BoolAttr)
    real = result_def(TensorType)
    imag = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """The operand's sizes, one of them halved if onesided."""
        sizes, last = _sizes_of(types[0], properties)
        if integer(properties, "onesided"):
            sizes[last] = sizes[last] // 2 + 1
        return (tensor_type(sizes, dtype_of(types[0])),) * 2

    def compute(self, x: Any) -> Any:
        function = np.fft.rfftn if integer(self.properties, "onesided") else np.fft.fftn
        return self.scaled(function(x, axes=self.axes), x.dtype)


@irdl_op_definition
class FftC2cOp(FourierOp):
    """The transform of complex numbers. inverse: with exp(+i ...)."""

    name = "cirh.fft_c2c"
    real_part = operand_def(TensorType)
    imag_part = operand_def(TensorType)
    inverse = prop_def(BoolAttr)
    real = result_def(TensorType)
    imag = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """The operands' type."""
        require_same(types[0], types[1])
        _sizes_of(types[0], properties)
        return types[0], types[0]

    def compute(self, real: Any, imag: Any) -> Any:
        x = real + 1j * imag
        if integer(self.properties, "inverse"):
            found = np.fft.ifftn(x, axes=self.axes, norm="forward")
        else:
            found = np.fft.fftn(x, axes=self.axes)
        return self.scaled(found, real.dtype)


@irdl_op_definition
class FftC2rOp(FourierOp):
    """The inverse of a onesided transform of real numbers. size: of the last transformed axis."""

    name = "cirh.fft_c2r"
    real_part = operand_def(TensorType)
    imag_part = operand_def(TensorType)
    size = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operands' sizes, with `size` numbers on the last transformed axis.

        Raises: VerifyException for another number of operands on that axis
        """
        require_same(types[0], types[1])
        sizes, last = _sizes_of(types[0], properties)
        size = integer(properties, "size")
        if sizes[last] != size // 2 + 1:
            raise VerifyException(
                f"{size} numbers come from {size // 2 + 1}, got {text_of(types[0])}"
            )
        sizes[last] = size
        return tensor_type(sizes, dtype_of(types[0]))

    def compute(self, real: Any, imag: Any) -> Any:
        sizes = [real.shape[d] for d in self.axes]
        sizes[-1] = integer(self.properties, "size")
        x = real + 1j * imag
        found = np.fft.irfftn(x, sizes, axes=self.axes, norm="forward")
        return self.scaled(found, real.dtype)[0]


OPS = (FftR2cOp, FftC2cOp, FftC2rOp)
