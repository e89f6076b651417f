"""The batch in a model: how many samples and labels count, what keeps others out, and shares.

An incomplete last batch is filled up with padding rows at its end.
"""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    ElementwiseOp,
    Properties,
    Types,
    UnaryOp,
    axis,
    integer,
    number,
)
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.types import Tensor, dtype_of, is_integer, shape_of, tensor_type, text_of


@irdl_op_definition
class SampleCountOp(LeafOp):
    """The number of samples of the global batch, without padding, a scalar."""

    name = "cirh.sample_count"
    NUMBER: ClassVar = "step.rows"
    FORM: ClassVar = "attr-dict `:` type($out)"


@irdl_op_definition
class ValidSamplesOp(LeafOp):
    """The number of samples of this part of the batch, without padding, a scalar."""

    name = "cirh.valid_samples"
    NUMBER: ClassVar = "step.valid"
    FORM: ClassVar = "attr-dict `:` type($out)"


@irdl_op_definition
class FirstSampleOp(LeafOp):
    """The index, in the global batch, of the first sample of this part, a scalar."""

    name = "cirh.first_sample"
    NUMBER: ClassVar = "step.first_sample"
    FORM: ClassVar = "attr-dict `:` type($out)"


@irdl_op_definition
class MaskPaddingOp(CirhOp):
    """x, with `value` in the padding rows of axis `dim`, after `samples` samples of `rows` rows
    each.
    """

    name = "cirh.mask_padding"
    WRITES_OVER: ClassVar = ("x",)
    TAKES_TEXT: ClassVar = ("x", "samples")
    x = operand_def(TensorType)
    samples = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    rows = prop_def(IntegerAttr)
    value = prop_def(FloatAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The type of x; the number of samples is one integer."""
        size, rows = shape_of(types[0])[axis(properties, types[0])], integer(properties, "rows")
        if rows < 1 or size % rows:
            raise VerifyException(f"rows must divide the axis size {size}, got {rows}")
        if shape_of(types[1]) != () or not is_integer(types[1]):
            raise VerifyException(f"samples must be a scalar integer, got {types[1]}")
        return types[0]

    def gradients(self, back: Backward) -> Gradients:
        """The gradient, 0 in padding."""
        dim, rows = (integer(self.properties, name) for name in ("dim", "rows"))
        samples = self.samples
        grad = back.emit(MaskPaddingOp, back.grad, samples, dim=dim, rows=rows, value=0.0)
        return [grad, None]

    def compute(self, x: Any, samples: Any) -> Any:
        """x, with the value in the rows after this many samples."""
        out = x.copy()
        behind = int(samples) * integer(self.properties, "rows")
        np.moveaxis(out, integer(self.properties, "dim"), 0)[behind:] = number(
            self.properties, "value"
        )
        return out


@irdl_op_definition
class LabelCountOp(CirhOp):
    """Number of labels of the global batch that are not `ignore_index`, a float scalar.

    ATen calls it the total weight of nll_loss.
    """

    name = "cirh.label_count"
    labels = operand_def(TensorType)
    ignore_index = prop_def(IntegerAttr)
    dtype = prop_def(StringAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        dtype = properties["dtype"]
        if not is_integer(types[0]):
            name, text = dtype_of(types[0]), text_of(types[0])
            raise VerifyException(f"labels must be integers, got {name} of shape {text}")
        assert isinstance(dtype, StringAttr)
        return tensor_type((), dtype.data)

    def compute(self, labels: Any) -> Any:
        """Count of the labels that are not ignored."""
        count = np.count_nonzero(labels != integer(self.properties, "ignore_index"))
        dtype = self.properties["dtype"]
        assert isinstance(dtype, StringAttr)
        return np.asarray(count, dtype.data)


@irdl_op_definition
class ShareOp(UnaryOp):
    """x / parts: the share of one of `parts` parts of a batch in a value that is equal in all.

    The shares of all parts add up to x.
    """

    name = "cirh.share"
    LINEAR_IN: ClassVar = (frozenset({0}),)
    parts = prop_def(IntegerAttr)

    def gradients(self, back: Backward) -> Gradients:
        """g / parts."""
        return [back.emit(ShareOp, back.grad, parts=integer(self.properties, "parts"))]

    @staticmethod
    def formula(x: Any, parts: float) -> Any:
        return np.divide(x, parts)


@irdl_op_definition
class FirstPartOp(ElementwiseOp):
    """x in the first part of a batch, 0 in the others: a value that is the same in all parts.

    The results of all parts add up to exactly x.
    """

    name = "cirh.first_part"
    WRITES_OVER: ClassVar = ("x",)
    x = operand_def(TensorType)
    first_sample = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The type of x; the index of the first sample is a scalar of its dtype."""
        if types[1] != tensor_type((), dtype_of(types[0])):
            raise VerifyException(f"first_sample must be a scalar as x, got {types[1]}")
        return types[0]

    @staticmethod
    def formula(x: Any, first_sample: Any) -> Any:
        return np.where(first_sample == 0, x, 0)


OPS = (
    SampleCountOp,
    ValidSamplesOp,
    FirstSampleOp,
    MaskPaddingOp,
    LabelCountOp,
    ShareOp,
    FirstPartOp,
)
