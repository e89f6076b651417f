"""Reductions over axes."""

from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import DivOp, MulOp, ToCopyOp
from csrun.cirh.ops.base import CirhOp, Properties, Types, axis, integer, ints
from csrun.cirh.ops.comparison import EqOp
from csrun.cirh.ops.shape import ExpandOp, ViewOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


class ReducingOp(CirhOp):
    """Reduction along `dims`, which stay as axes of size 1 with `keepdim`."""

    x = operand_def(TensorType)
    dims = prop_def(DenseArrayBase)
    keepdim = prop_def(BoolAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without the summed axes."""
        own, dims = shape_of(types[0]), ints(properties, "dims")
        if len(set(dims)) != len(dims) or not set(dims) <= set(range(len(own))):
            raise VerifyException(f"dims must be axes of {types[0]}, got {list(dims)}")
        keep = properties["keepdim"] == BoolAttr.from_bool(True)
        shape = [1 if d in dims else n for d, n in enumerate(own) if keep or d not in dims]
        return tensor_type(shape, dtype_of(types[0]))

    def keepdim_shape(self) -> tuple[int, ...]:
        """The shape with all axes."""
        full, dims = shape_of(type_of(self.x)), ints(self.properties, "dims")
        return tuple(1 if d in dims else n for d, n in enumerate(full))


@irdl_op_definition
class SumOp(ReducingOp):
    """The sum."""

    name = "cirh.sum"

    def gradients(self, back: Backward) -> Gradients:
        """The gradient broadcast along the summed axes."""
        grad = viewed(back, back.grad, self.keepdim_shape())
        return [back.emit(ExpandOp, grad, shape=shape_of(type_of(self.x)))]

    def compute(self, x: Any) -> Any:
        """The sum over `dims`."""
        keep = bool(integer(self.properties, "keepdim"))
        return np.asarray(x.sum(axis=ints(self.properties, "dims"), keepdims=keep))


def viewed(back: Backward, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    """View a value with another shape."""
    same = shape_of(type_of(value)) == shape
    return value if same else back.emit(ViewOp, value, shape=shape)


class ExtremumOp(ReducingOp):
    """The maximum or minimum; NaN if there is one."""

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without the axes, none of which may be empty if the result is not."""
        own, dims = shape_of(types[0]), ints(properties, "dims")
        out = super().infer(types, properties)
        if prod(shape_of(out)) and any(own[d] == 0 for d in dims):
            raise VerifyException(
                f"cannot reduce over empty axes {list(dims)} of {text_of(types[0])}"
            )
        return out

    def gradients(self, back: Backward) -> Gradients:
        """g divided among all elements equal to the result."""
        grad, found = (viewed(back, v, self.keepdim_shape()) for v in (back.grad, self.out))
        equal = back.emit(EqOp, self.x, found)
        mask = back.emit(ToCopyOp, equal, dtype=dtype_of(type_of(self.x)))
        count = back.emit(SumOp, mask, dims=ints(self.properties, "dims"), keepdim=True)
        return [back.emit(DivOp, back.emit(MulOp, grad, mask), count)]


@irdl_op_definition
class AmaxOp(ExtremumOp):
    """The maximum."""

    name = "cirh.amax"

    def compute(self, x: Any) -> Any:
        keep = bool(integer(self.properties, "keepdim"))
        return x.max(axis=ints(self.properties, "dims"), keepdims=keep)


@irdl_op_definition
class AminOp(ExtremumOp):
    """The minimum."""

    name = "cirh.amin"

    def compute(self, x: Any) -> Any:
        keep = bool(integer(self.properties, "keepdim"))
        return x.min(axis=ints(self.properties, "dims"), keepdims=keep)


@irdl_op_definition
class ArgmaxOp(CirhOp):
    """The index of the maximum along `dim`, the first one of equal values."""

    name = "cirh.argmax"
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without axis `dim`, int64."""
        dim = axis(properties, types[0])
        shape = [n for d, n in enumerate(shape_of(types[0])) if d != dim]
        return tensor_type(shape, "int64")

    def compute(self, x: Any) -> Any:
        """The first index of the largest value."""
        return np.asarray(x.argmax(axis=integer(self.properties, "dim")))


OPS = (SumOp, AmaxOp, AminOp, ArgmaxOp)
