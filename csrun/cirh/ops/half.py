"""Rounding to the numbers of a 16-bit format."""

from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerAttr
from xdsl.irdl import irdl_op_definition, prop_def

from csrun.cirh.math_functions import round_half
from csrun.cirh.ops.rounding import RoundingOp


@irdl_op_definition
class RoundHalfOp(RoundingOp):
    """The nearest number of a 16-bit format of so many mantissa bits, ties to even."""

    name = "cirh.round_half"
    # Gradients of parts of a batch are rounded before they are added up.
    LINEAR_IN: ClassVar = (frozenset({0}),)
    mantissa_bits = prop_def(IntegerAttr)
    bias = prop_def(IntegerAttr)

    @staticmethod
    def formula(x: Any, mantissa_bits: int, bias: int) -> Any:
        return round_half(x, mantissa_bits, bias)


OPS = (RoundHalfOp,)
