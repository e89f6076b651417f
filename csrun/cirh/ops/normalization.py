"""Softmax and normalizations over the last axes: one operator each, forward and backward."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    BackwardOp,
    CirhOp,
    Properties,
    Reads,
    Types,
    UnaryOp,
    axis,
    integer,
    number,
    require_same,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


@irdl_op_definition
class SoftmaxOp(UnaryOp):
    """exp(x) / sum(exp(x)) along `dim`."""

    name = "cirh.softmax"
    dim = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        axis(properties, types[0])
        return types[0]

    def gradients(self, back: Backward) -> Gradients:
        """y (g - sum(g y)), from the saved result."""
        dim = integer(self.properties, "dim")
        return [back.emit(SoftmaxBackwardOp, back.grad, self.out, dim=dim)]

    def compute(self, x: Any) -> Any:
        """exp(x) over its sum along an axis."""
        dim = integer(self.properties, "dim")
        exponential = np.exp(x - x.max(axis=dim, keepdims=True, initial=-np.inf))
        return exponential / exponential.sum(axis=dim, keepdims=True)


@irdl_op_definition
class SoftmaxBackwardOp(BackwardOp):
    """y (grad - sum(grad y)) along `dim`; saved is the output y."""

    name = "cirh.softmax_backward_data"
    dim = prop_def(IntegerAttr)

    def compute(self, grad: Any, out: Any) -> Any:
        """out (grad - sum(grad out))."""
        return out * (grad - (grad * out).sum(axis=integer(self.properties, "dim"), keepdims=True))


@irdl_op_definition
class NativeLayerNormOp(CirhOp):
    """(x - mean) rstd weight + bias over the last axes, as many as the weight has.

    rstd is 1 / sqrt(variance + eps), with the biased variance.

    Source: Ba, Kiros and Hinton 2016, Layer Normalization, section 3
    """

    name = "cirh.native_layer_norm"
    READS: ClassVar = Reads.CONTIGUOUS
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    bias = operand_def(TensorType)
    eps = prop_def(FloatAttr)
    out = result_def(TensorType)
    mean = result_def(TensorType)
    rstd = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., N], weight [N], bias [N] -> [..., N], and twice [..., 1]."""
        x, weight, bias = types
        require_same(weight, bias)
        require_epsilon(properties)
        statistic = statistic_of(x, weight)
        return x, statistic, statistic

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of x, weight and bias, from x and the saved mean and rstd."""
        x, weight, _ = back.operands
        _, mean, rstd = self.results
        kind = NativeLayerNormBackwardOp
        return list(back.emit_all(kind, back.grad, x, mean, rstd, weight))

    def compute(self, x: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
        """The result, and mean and 1 / standard deviation of each run of values."""
        axes = _last(weight.ndim)
        mean = x.mean(axis=axes, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
        rstd = 1 / np.sqrt(variance + x.dtype.type(number(self.properties, "eps")))
        return (x - mean) * rstd * weight + bias, mean, rstd


@irdl_op_definition
class NativeLayerNormBackwardOp(CirhOp):
    """The gradients of a layer norm's operands, from the saved statistics."""

    name = "cirh.native_layer_norm_backward"
    READS: ClassVar = Reads.CONTIGUOUS
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    rstd = operand_def(TensorType)
    weight = operand_def(TensorType)
    x_gradient = result_def(TensorType)
    weight_gradient = result_def(TensorType)
    bias_gradient = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """Gradient and x [..., N], statistics [..., 1], weight [N] -> [..., N], [N], [N]."""
        grad, x, mean, rstd, weight = types
        require_same(grad, x)
        require_statistics(x, weight, mean, rstd)
        return x, weight, weight

    def compute(self, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> tuple[Any, ...]:
        """Gradients of x, weight and bias."""
        axes, normal = _last(weight.ndim), (x - mean) * rstd
        scaled = grad * weight
        own = scaled - scaled.mean(axis=axes, keepdims=True)
        own = own - normal * (scaled * normal).mean(axis=axes, keepdims=True)
        outer = tuple(range(x.ndim - weight.ndim))
        return rstd * own, (grad * normal).sum(axis=outer), grad.sum(axis=outer)


@irdl_op_definition
class FusedRmsNormOp(CirhOp):
    """x rrms weight over the last axes, as many as the weight has; rrms is 1 / sqrt(mean x² + eps).

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4
    """

    name = "cirh._fused_rms_norm"
    READS: ClassVar = Reads.CONTIGUOUS
    x = operand_def(TensorType)
    weight = operand_def(TensorType)
    eps = prop_def(FloatAttr)
    out = result_def(TensorType)
    rrms = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """[..., N], weight [N] -> [..., N], [..., 1]."""
        require_epsilon(properties)
        return types[0], statistic_of(types[0], types[1])

    def gradients(self, back: Backward) -> Gradients:
        """Gradients of x and weight, from x and the saved root mean square."""
        x, weight = back.operands
        kind = FusedRmsNormBackwardOp
        return list(back.emit_all(kind, back.grad, x, self.results[1], weight))

    def compute(self, x: Any, weight: Any) -> tuple[Any, ...]:
        """The result, and 1 / root mean square of each run of values."""
        square = (x * x).mean(axis=_last(weight.ndim), keepdims=True)
        rrms = 1 / np.sqrt(square + x.dtype.type(number(self.properties, "eps")))
        return x * rrms * weight, rrms


@irdl_op_definition
class FusedRmsNormBackwardOp(CirhOp):
    """The gradients of an RMS norm's operands, from the saved statistic."""

    name = "cirh._fused_rms_norm_backward"
    READS: ClassVar = Reads.CONTIGUOUS
    grad = operand_def(TensorType)
    x = operand_def(TensorType)
    rrms = operand_def(TensorType)
    weight = operand_def(TensorType)
    x_gradient = result_def(TensorType)
    weight_gradient = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> tuple[Tensor, ...]:
        """Gradient and x [..., N], rrms [..., 1], weight [N] -> [..., N], [N]."""
        grad, x, rrms, weight = types
        require_same(grad, x)
        require_statistics(x, weight, rrms)
        return x, weight

    def compute(self, grad: Any, x: Any, rrms: Any, weight: Any) -> tuple[Any, ...]:
        """Gradients of x and weight."""
        normal, scaled = x * rrms, grad * weight
        own = scaled - normal * (scaled * normal).mean(axis=_last(weight.ndim), keepdims=True)
        return rrms * own, (grad * normal).sum(axis=tuple(range(x.ndim - weight.ndim)))


def statistic_of(x: Tensor, weight: Tensor) -> Tensor:
    """Return the type of one number per normalized run of values.

    Raises: VerifyException unless the weight has the last axes of x, one at least
    """
    require_same_dtype((x, weight))
    full, own = shape_of(x), shape_of(weight)
    if not own or full[-len(own) :] != own:
        raise VerifyException(
            f"the weight must have the last axes of {text_of(x)}, got {text_of(weight)}"
        )
    return tensor_type((*full[: -len(own)], *(1 for _ in own)), dtype_of(x))


def require_statistics(x: Tensor, weight: Tensor, *found: Tensor) -> None:
    """Raises: VerifyException unless each is one number per normalized run"""
    expected = statistic_of(x, weight)
    for kind in found:
        if kind != expected:
            raise VerifyException(f"saved statistics must be {expected}, got {kind}")


def require_epsilon(properties: Properties) -> None:
    """Raises: VerifyException for an epsilon below 0"""
    if not number(properties, "eps") >= 0:
        raise VerifyException(f"eps must be >= 0, got {number(properties, 'eps')}")


def _last(count: int) -> tuple[int, ...]:
    return tuple(range(-count, 0))


OPS = (
    SoftmaxOp,
    SoftmaxBackwardOp,
    NativeLayerNormOp,
    NativeLayerNormBackwardOp,
    FusedRmsNormOp,
    FusedRmsNormBackwardOp,
)
