"""Random masks and numbers, and the application of masks.

They depend on the run's seed, the step, its stream, the sample's index in the global batch and
the position within the sample.
"""

from typing import Any, ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import ElementwiseOp, Properties, Types, number
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, text_of, type_of


@irdl_op_definition
class DropoutMaskOp(LeafOp):
    """False with probability `rate`, else true; `stream` distinguishes the masks of a model.

    A sample has `rows` rows of axis 0, 1 by default; with 0 the mask has no samples. Its values are
    drawn in `runs` of equal length, 1 by default, each with separate counters.
    """

    name = "cirh.dropout_mask"
    NEEDS_KERNEL: ClassVar = True
    rate = prop_def(FloatAttr)
    stream = prop_def(IntegerAttr)
    rows = opt_prop_def(IntegerAttr)
    runs = opt_prop_def(IntegerAttr)
    FORM: ClassVar = "attr-dict `:` type($out)"

    @property
    def rows_per_sample(self) -> int:
        """Rows of axis 0 per sample; 0 for a mask without samples."""
        return 1 if self.rows is None else self.rows.value.data

    def verify_(self) -> None:
        """Raises: VerifyException for a rate out of range, or a mask that is not boolean"""
        rate, where = number(self.properties, "rate"), f"{self.name} in {self.where}"
        if not 0 <= rate < 1:
            raise VerifyException(f"{where}: rate must be in [0, 1), got {rate}")
        if dtype_of(type_of(self.out)) != "bool":
            raise VerifyException(f"{where}: a mask must be bool, got {self.out.type}")


@irdl_op_definition
class UniformOp(LeafOp):
    """Uniform float32 numbers in (0, 1), odd multiples of 2^-24; `stream` and `rows` as of a mask.

    Their `stream` also differs from those of masks.
    """

    name = "cirh.uniform"
    NEEDS_KERNEL: ClassVar = True
    stream = prop_def(IntegerAttr)
    rows = opt_prop_def(IntegerAttr)
    FORM: ClassVar = "attr-dict `:` type($out)"

    @property
    def rows_per_sample(self) -> int:
        """Rows of axis 0 per sample; 0 for numbers without samples."""
        return 1 if self.rows is None else self.rows.value.data

    def verify_(self) -> None:
        """Raises: VerifyException for numbers of another type"""
        if dtype_of(type_of(self.out)) != "float32":
            raise VerifyException(
                f"{self.name} in {self.where}: the numbers must be float32, got {self.out.type}"
            )


@irdl_op_definition
class MaskedScaleOp(ElementwiseOp):
    """x * mask * scale."""

    name = "cirh._masked_scale"
    KEEPS_INTEGERS: ClassVar = True
    WRITES_OVER: ClassVar = ("x",)
    LINEAR_IN: ClassVar = (frozenset({0}),)
    x = operand_def(TensorType)
    mask = operand_def(TensorType)
    scale = prop_def(FloatAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The type of x, whose shape the mask has."""
        if shape_of(types[0]) != shape_of(types[1]) or dtype_of(types[1]) != "bool":
            raise VerifyException(
                f"the mask must be bool of shape {text_of(types[0])}, got {types[1]}"
            )
        return types[0]

    def gradients(self, back: Backward) -> Gradients:
        """The gradient under the same mask; masks have none."""
        scale = number(self.properties, "scale")
        grad = back.emit(MaskedScaleOp, back.grad, self.mask, scale=scale)
        return [grad, None]

    @staticmethod
    def formula(x: Any, mask: Any, scale: float) -> Any:
        return x * mask * scale


OPS = (DropoutMaskOp, UniformOp, MaskedScaleOp)
