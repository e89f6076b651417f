"""Batch normalization in training: statistics of the batch's samples, and running statistics.

Its results depend on the batch as a whole, and cannot be computed from parts, unless each minibatch
has its own statistics. Normalization by running statistics, outside of training, is plain
arithmetic without an operator.
"""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import BoolAttr, FloatAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Plain,
    Properties,
    Reads,
    Types,
    integer,
    number,
    require_same,
    require_same_dtype,
)
from csrun.cirh.ops.normalization import require_epsilon
from csrun.cirh.types import Tensor, is_integer, shape_of, text_of

AXES = (0, 2)  # axes of [N, C, P] except the channels


@irdl_op_definition
class NativeBatchNormOp(CirhOp):
    """(x - mean) rstd weight + bias for each channel, and the next running statistics.

    mean and variance are over all valid samples and all positions of a channel; rstd is 1 /
    sqrt(variance + eps). The running statistics are updated with weight `momentum`, with the
    unbiased variance, as in ATen. A sample has `rows` rows of x; padding rows are normalized, too,
    but do not count.

    With `by_minibatch` each part of a split batch has its own statistics, and the running ones are
    updated by their mean, weighted by samples: a part returns its share of the next values.

    Source: Ioffe and Szegedy 2015, Batch Normalization, algorithms 1 and 2; by_minibatch: Huang et
    al. 2019, GPipe, section 2.2
    """

    name = "cirh.native_batch_norm"
    READS: ClassVar = Reads.CONTIGUOUS
    TAKES_TEXT: ClassVar = ("samples",)
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    bias = operand_def(TensorType)
    running_mean = operand_def(TensorType)
    running_var = operand_def(TensorType)
    samples = operand_def(TensorType)
    rows = prop_def(IntegerAttr)
    momentum = prop_def(FloatAttr)
    eps = prop_def(FloatAttr)
    by_minibatch = opt_prop_def(BoolAttr)
    out = result_def(TensorType)
    mean = result_def(TensorType)
    rstd = result_def(TensorType)
    next_mean = result_def(TensorType)
    next_var = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """x [N, C, P], four of [C], a number of samples -> x's, and four times [C]."""
        x, weight, *others, samples = types
        require_channels(x, weight)
        for other in others:
            require_same(weight, other)
        require_samples(x, samples, properties)
        require_epsilon(properties)
        if not 0 <= number(properties, "momentum") <= 1:
            raise VerifyException(f"momentum must be in 0..1, got {number(properties, 'momentum')}")
        return x, weight, weight, weight, weight

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of x, weight and bias, from x and the saved mean and rstd."""
        found = back.emit_all(
            NativeBatchNormBackwardOp,
            back.grad,
            self.x,
            self.mean,
            self.rstd,
            self.weight,
            self.samples,
            rows=integer(self.properties, "rows"),
            **by_minibatch(self.properties),
        )
        return [*found, None, None, None]

    def compute(
        self, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, samples: Any
    ) -> tuple[Any, ...]:
        """Statistics of the valid rows."""
        counted = x[: int(samples) * integer(self.properties, "rows")]
        mean, variance = counted.mean(AXES), counted.var(AXES)
        rstd = 1 / np.sqrt(variance + x.dtype.type(number(self.properties, "eps")))
        count = counted.shape[0] * counted.shape[2]
        out = (x - mean[:, None]) * (rstd * weight)[:, None] + bias[:, None]
        unbiased = variance * x.dtype.type(count / max(count - 1, 1))
        share = x.dtype.type(number(self.properties, "momentum"))
        running = (
            (1 - share) * old + share * new
            for old, new in ((running_mean, mean), (running_var, unbiased))
        )
        return out, mean, rstd, *running


@irdl_op_definition
class NativeBatchNormBackwardOp(CirhOp):
    """The gradients of x, of the weight and of the bias; 0 in padding."""

    name = "cirh.native_batch_norm_backward"
    READS: ClassVar = Reads.CONTIGUOUS
    TAKES_TEXT: ClassVar = ("samples",)
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = operand_def(TensorType)
    samples = operand_def(TensorType)
    rows = prop_def(IntegerAttr)
    by_minibatch = opt_prop_def(BoolAttr)
    x_gradient = result_def(TensorType)
    weight_gradient = result_def(TensorType)
    bias_gradient = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """Gradient and x [N, C, P], three of [C], a number of samples -> x's, and twice [C]."""
        grad, x, mean, rstd, weight, samples = types
        require_same(grad, x)
        require_channels(x, weight)
        require_same(weight, mean)
        require_same(weight, rstd)
        require_samples(x, samples, properties)
        return x, weight, weight

    def compute(
        self, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, samples: Any
    ) -> tuple[Any, ...]:
        """Gradients of the valid rows; padding after them has none."""
        end = int(samples) * integer(self.properties, "rows")
        normal = (x[:end] - mean[:, None]) * rstd[:, None]
        of_weight, of_bias = (grad[:end] * normal).sum(AXES), grad[:end].sum(AXES)
        count = end * x.shape[2]
        own = grad[:end] - (of_bias[:, None] + normal * of_weight[:, None]) / count
        out = np.zeros_like(x)
        out[:end] = own * (rstd * weight)[:, None]
        return out, of_weight, of_bias


def by_minibatch(properties: Properties) -> dict[str, Plain]:
    """Return the option of that name, if it is set."""
    return {"by_minibatch": True} if "by_minibatch" in properties else {}


def require_channels(x: Tensor, weight: Tensor) -> None:
    """Raises: VerifyException unless x is [N, C, P] and the weight [C], of one type"""
    require_same_dtype((x, weight))
    if len(shape_of(x)) != 3 or shape_of(weight) != shape_of(x)[1:2]:
        raise VerifyException(
            "x must be [samples, channels, positions] and the weight [channels], got "
            f"{text_of(x)} and {text_of(weight)}"
        )


def require_samples(x: Tensor, samples: Tensor, properties: Properties) -> None:
    """Raises: VerifyException unless x has whole samples, and their number is one integer"""
    rows = integer(properties, "rows")
    if rows < 1 or shape_of(x)[0] % rows:
        raise VerifyException(f"rows must divide the axis size {shape_of(x)[0]}, got {rows}")
    if shape_of(samples) != () or not is_integer(samples):
        raise VerifyException(f"samples must be a scalar integer, got {samples}")


OPS = (NativeBatchNormOp, NativeBatchNormBackwardOp)
