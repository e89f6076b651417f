"""16-bit formats: rounding to their numbers, and conversion to words and back."""

from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.base.half_formats import WORD
from csrun.cirh.math_functions import half_words, narrow_half, round_half, widen_half
from csrun.cirh.ops.base import ElementwiseOp, Properties, Types
from csrun.cirh.ops.rounding import RoundingOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type


@irdl_op_definition
class RoundHalfOp(RoundingOp):
    """The nearest number of a 16-bit format with this many mantissa bits, ties to even."""

    name = "cirh.round_half"
    # gradients of parts of a batch are rounded before they are summed
    LINEAR_IN: ClassVar = (frozenset({0}),)
    mantissa_bits = prop_def(IntegerAttr)
    bias = prop_def(IntegerAttr)

    @staticmethod
    def formula(x: Any, mantissa_bits: int, bias: int) -> Any:
        return round_half(x, mantissa_bits, bias)


class ConvertingOp(ElementwiseOp):
    """Conversion of float32 to words or back; inserted after differentiation."""

    LINEAR_IN: ClassVar = (frozenset({0}),)  # zeros stay zero
    KEEPS_INTEGERS: ClassVar = True
    FROM: ClassVar[str]
    TO: ClassVar[str]

    x = operand_def(TensorType)
    mantissa_bits = prop_def(IntegerAttr)
    bias = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's shape, of the other type."""
        if dtype_of(types[0]) != cls.FROM:
            raise VerifyException(f"the operand must be {cls.FROM}, got {types[0]}")
        return tensor_type(shape_of(types[0]), cls.TO)

    def compute(self, *operands: Any) -> Any:
        """The formula's value."""
        return self.formula(*operands, **self.options)


@irdl_op_definition
class NarrowHalfOp(ConvertingOp):
    """Words of a 16-bit format nearest to numbers."""

    name = "cirh.narrow_half"
    FROM: ClassVar = "float32"
    TO: ClassVar = WORD

    @staticmethod
    def formula(x: Any, mantissa_bits: int, bias: int) -> Any:
        return narrow_half(x, mantissa_bits, bias)


@irdl_op_definition
class HalfWordsOp(ConvertingOp):
    """Words of numbers that a 16-bit format has."""

    name = "cirh.half_words"
    FROM: ClassVar = "float32"
    TO: ClassVar = WORD

    @staticmethod
    def formula(x: Any, mantissa_bits: int, bias: int) -> Any:
        return half_words(x, mantissa_bits, bias)


@irdl_op_definition
class WidenHalfOp(ConvertingOp):
    """Numbers of words of a 16-bit format."""

    name = "cirh.widen_half"
    FROM: ClassVar = WORD
    TO: ClassVar = "float32"

    @staticmethod
    def formula(x: Any, mantissa_bits: int, bias: int) -> Any:
        return widen_half(x, mantissa_bits, bias)


OPS = (RoundHalfOp, NarrowHalfOp, HalfWordsOp, WidenHalfOp)
