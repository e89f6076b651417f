"""Elementwise arithmetic, comparisons, logic, selections and casts."""

from collections.abc import Callable
from functools import partial, reduce
from math import inf, sqrt
from typing import Any

import numpy as np

from csrun import nn
from csrun.cirh.ops import arithmetic as cirh_arithmetic
from csrun.cirh.ops import comparison, powers, rounding, trigonometry
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.gelu import GeluCdfOp
from csrun.cirh.ops.shape import ViewOp
from csrun.nn import Tensor
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value

_BINARY: dict[str, type[CirhOp]] = {
    "Add": cirh_arithmetic.AddOp,
    "AddV2": cirh_arithmetic.AddOp,
    "Sub": cirh_arithmetic.SubOp,
    "Mul": cirh_arithmetic.MulOp,
    "RealDiv": cirh_arithmetic.DivOp,
    "FloorDiv": rounding.FloorDivideOp,
    "FloorMod": rounding.RemainderOp,
    "Maximum": comparison.MaximumOp,
    "Minimum": comparison.MinimumOp,
    "Pow": powers.PowOp,
    "Atan2": trigonometry.Atan2Op,
    "Equal": comparison.EqOp,
    "NotEqual": comparison.NeOp,
    "Less": comparison.LtOp,
    "LessEqual": comparison.LeOp,
    "Greater": comparison.GtOp,
    "GreaterEqual": comparison.GeOp,
}
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Neg": lambda x: -x,
    "Exp": nn.exp,
    "Expm1": nn.expm1,
    "Log": nn.log,
    "Log1p": nn.log1p,
    "Sqrt": nn.sqrt,
    "Rsqrt": nn.rsqrt,
    "Reciprocal": nn.reciprocal,
    "Inv": nn.reciprocal,
    "Abs": nn.abs,
    "Sign": nn.sign,
    "Square": lambda x: x * x,
    "Floor": nn.floor,
    "Ceil": nn.ceil,
    "Round": nn.round,
    "Rint": nn.round,
    "Sin": nn.sin,
    "Cos": nn.cos,
    "Tan": nn.tan,
    "Asin": nn.asin,
    "Acos": nn.acos,
    "Atan": nn.atan,
    "Sinh": nn.sinh,
    "Cosh": nn.cosh,
    "Asinh": nn.asinh,
    "Acosh": nn.acosh,
    "Atanh": nn.atanh,
}


def _binary(kind: type[CirhOp], e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    return e.emit(kind, x, y)


def _unary(function: Callable[[Tensor], Tensor], e: GraphEmission, op: Any, x: Value) -> Value:
    return function(e.tensor(x))


def power(e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    """Powers by a constant such as 2 or 0.5 become products and roots."""
    if not isinstance(y, Tensor) and y.size == 1:
        return e.tensor(x) ** float(y.reshape(()))
    return e.emit(powers.PowOp, x, y)


def squared_difference(e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    difference = e.emit(cirh_arithmetic.SubOp, x, y)
    return difference * difference


def div_no_nan(e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    """x / y, or 0 where y is 0."""
    a, b = e.tensor(x), e.tensor(y)
    is_zero = b == 0.0
    return nn.where(is_zero, a * 0.0, a / nn.where(is_zero, 1.0, b))


def add_n(e: GraphEmission, op: Any, *terms: Value) -> Value:
    return reduce(lambda x, y: e.emit(cirh_arithmetic.AddOp, x, y), terms)


def logical_not(e: GraphEmission, op: Any, x: Value) -> Value:
    return e.emit(comparison.EqOp, x, np.array(False))


def logical_and(e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    return e.emit(comparison.WhereOp, x, y, np.array(False))


def logical_or(e: GraphEmission, op: Any, x: Value, y: Value) -> Value:
    return e.emit(comparison.WhereOp, x, np.array(True), y)


def select(e: GraphEmission, op: Any, condition: Value, x: Value, y: Value) -> Value:
    """In the older form the condition may be a vector, with one element per row."""
    mask, values = e.tensor(condition), e.tensor(x)
    if op.type == "Select" and len(mask.shape) == 1 and len(values.shape) > 1:
        rows = (mask.shape[0], *(1,) * (len(values.shape) - 1))
        mask = e.emit(ViewOp, mask, shape=rows)
    return e.emit(comparison.WhereOp, mask, values, y)


def cast(e: GraphEmission, op: Any, x: Value) -> Value:
    return e.tensor(x).astype(e.dtype_of(op.get_attr("DstT").name))


def identity(e: GraphEmission, op: Any, *values: Value) -> Value | tuple[Value, ...]:
    return values[0] if len(op.outputs) == 1 else values


def clip_by_value(e: GraphEmission, op: Any, x: Value, low: Value, high: Value) -> Value:
    return e.emit(comparison.MinimumOp, e.emit(comparison.MaximumOp, x, low), high)


def erf(e: GraphEmission, op: Any, x: Value) -> Value:
    """2 P(N(0, 1) < sqrt(2) x) - 1."""
    return _normal_cdf(e, e.tensor(x) * sqrt(2)) * 2.0 - 1.0


def erfc(e: GraphEmission, op: Any, x: Value) -> Value:
    return _normal_cdf(e, e.tensor(x) * -sqrt(2)) * 2.0


def _normal_cdf(e: GraphEmission, x: Tensor) -> Tensor:
    return e.emit(GeluCdfOp, x, approximate="none")


def is_finite(e: GraphEmission, op: Any, x: Value) -> Value:
    return nn.abs(e.tensor(x)) < inf


def is_inf(e: GraphEmission, op: Any, x: Value) -> Value:
    return nn.abs(e.tensor(x)) == inf


def is_nan(e: GraphEmission, op: Any, x: Value) -> Value:
    return logical_not(e, op, nn.abs(e.tensor(x)) <= inf)


EMITTERS: dict[str, Emitter] = {
    **{name: partial(_binary, kind) for name, kind in _BINARY.items()},
    **{name: partial(_unary, function) for name, function in _UNARY.items()},
    "Pow": power,
    "SquaredDifference": squared_difference,
    "DivNoNan": div_no_nan,
    "AddN": add_n,
    "Erf": erf,
    "Erfc": erfc,
    "IsFinite": is_finite,
    "IsInf": is_inf,
    "IsNan": is_nan,
    "LogicalNot": logical_not,
    "LogicalAnd": logical_and,
    "LogicalOr": logical_or,
    "Select": select,
    "SelectV2": select,
    "ClipByValue": clip_by_value,
    "Cast": cast,
    "Identity": identity,
    "IdentityN": identity,
    "Snapshot": identity,
    "CheckNumerics": identity,
}
