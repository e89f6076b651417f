"""Gelu, exact or in its tanh approximation, its backward operator, and parts that both share."""

import math
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.math_functions import normal_cdf
from csrun.cirh.ops.arithmetic import AddOp, ExpOp, MulOp, SubOp
from csrun.cirh.ops.base import (
    BackwardOp,
    ElementwiseOp,
    Properties,
    Types,
    UnaryOp,
    require_same,
)
from csrun.cirh.types import Tensor

APPROXIMATIONS = ("none", "tanh")
#: Constants of gelu's tanh approximation, in INNER (x + CUBE x x x).
INNER, CUBE = math.sqrt(2 / math.pi), 0.044715


def require_approximation(properties: Properties) -> None:
    """Raises: VerifyException unless `approximate` is ATen's none (exact) or tanh."""
    found = properties["approximate"]
    if not isinstance(found, StringAttr) or found.data not in APPROXIMATIONS:
        raise VerifyException(f"approximate must be none or tanh, got {found}")


@irdl_op_definition
class GeluOp(UnaryOp):
    """x * P(N(0, 1) < x), or its approximation by tanh.

    Source: Hendrycks and Gimpel 2016, section 2
    """

    name = "cirh.gelu"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(GeluBackwardOp, back.grad, self.x, **back.options())]

    @staticmethod
    def formula(x: Any, approximate: str) -> Any:
        return x * _cdf(x, approximate)


@irdl_op_definition
class GeluBackwardOp(BackwardOp):
    """grad * gelu'(x); saved is the input x."""

    name = "cirh.gelu_backward"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    @staticmethod
    def formula(grad: Any, x: Any, approximate: str) -> Any:
        """grad (1 + tanh) (1 / 2 + (1 - tanh) x / 2 slope of the inner part), if by tanh."""
        if approximate == "none":
            return grad * _slope(x, normal_cdf(x))
        square = x * x
        tanh = np.tanh((square * (INNER * CUBE) + INNER) * x)
        slope = (square * (1.5 * INNER * CUBE) + INNER / 2) * x
        return grad * (((1 - tanh) * slope + 0.5) * (tanh + 1))


@irdl_op_definition
class GeluCdfOp(UnaryOp):
    """P(N(0, 1) < x), or its approximation by tanh: the factor of x in gelu."""

    name = "cirh.gelu_cdf"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        """g exp(-x x / 2) / sqrt(2 pi), or g y (1 - y) 2 slope of the inner part, if by tanh."""
        square = back.emit(MulOp, self.x, self.x)
        if self.approximate.data == "none":
            exponent = back.emit(MulOp, square, back.full(-0.5, square))
            slope = back.emit(ExpOp, exponent)
            factor = back.full(1 / math.sqrt(2 * math.pi), square)
        else:
            cubic = back.emit(MulOp, square, back.full(6 * INNER * CUBE, square))
            slope = back.emit(AddOp, cubic, back.full(2 * INNER, square))
            rest = back.emit(SubOp, back.full(1.0, square), self.out)
            factor = back.emit(MulOp, self.out, rest)
        return [back.emit(MulOp, back.grad, back.emit(MulOp, slope, factor))]

    @staticmethod
    def formula(x: Any, approximate: str) -> Any:
        return _cdf(x, approximate)


@irdl_op_definition
class GeluSlopeOp(ElementwiseOp):
    """gelu'(x), from the cdf of x and gelu = x cdf, which forward has computed.

    x has no later readers, so the result may overwrite it.
    """

    name = "cirh.gelu_slope"
    WRITES_OVER: ClassVar = ("x",)
    x = operand_def(TensorType)
    cdf = operand_def(TensorType)
    gelu = operand_def(TensorType)
    out = result_def(TensorType)
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        require_same(types[0], types[1])
        require_same(types[0], types[2])
        return types[0]

    @staticmethod
    def formula(x: Any, cdf: Any, gelu: Any, approximate: str) -> Any:
        """cdf (1 + (x - gelu) 2 slope of the inner part), if by tanh."""
        if approximate == "none":
            return _slope(x, cdf)
        slope = x * x * (6 * INNER * CUBE) + 2 * INNER
        return ((x - gelu) * slope + 1) * cdf


def _cdf(x: Any, approximate: str) -> Any:
    """P(N(0, 1) < x), or 1 / 2 + 1 / 2 tanh(...)."""
    if approximate == "none":
        return normal_cdf(x)
    return (np.tanh((x * x * (INNER * CUBE) + INNER) * x) + 1) * 0.5


def _slope(x: Any, cdf: Any) -> Any:
    """cdf + x exp(-x x / 2) / sqrt(2 pi)."""
    return np.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)) * x + cdf


OPS = (
    GeluOp,
    GeluBackwardOp,
    GeluCdfOp,
    GeluSlopeOp,
)
