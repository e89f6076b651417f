"""Views of a tensor, slices, and copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    Types,
    UnaryOp,
    axis,
    integer,
    ints,
    require_rank,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, size_of, tensor_type, text_of, type_of


class ViewingOp(CirhOp):
    """View of one operand: its elements, in full, in part or repeated, in another layout."""

    TAKES_TEXT: ClassVar = ("x",)
    NUMBER: ClassVar = "{}"
    NEEDS_KERNEL: ClassVar = False

    x = operand_def(TensorType)
    out = result_def(TensorType)


class ReshapingOp(ViewingOp):
    """A view, and the sizes of its axes."""

    shape = prop_def(DenseArrayBase)


@irdl_op_definition
class ViewOp(ReshapingOp):
    """The same elements in row-major order under another shape."""

    name = "cirh.view"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The new shape, of as many elements."""
        shape = ints(properties, "shape")
        if prod(shape) != size_of(types[0]):
            raise VerifyException(f"{text_of(types[0])} cannot be viewed as {list(shape)}")
        return tensor_type(shape, dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient viewed as the operand."""
        shape = shape_of(type_of(self.x))
        return [back.emit(ViewOp, back.grad, shape=shape)]

    def compute(self, x: Any) -> Any:
        """Row-major elements under another shape."""
        return x.reshape(ints(self.properties, "shape"))


@irdl_op_definition
class ExpandOp(ReshapingOp):
    """Broadcasting: axes of size 1, and missing leading axes, are repeated."""

    name = "cirh.expand"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The new shape, to which the operand's broadcasts."""
        shape, own = ints(properties, "shape"), shape_of(types[0])
        tail = shape[len(shape) - len(own) :]
        fits = len(own) <= len(shape) and all(a in (1, b) for a, b in zip(own, tail, strict=True))
        if not fits:
            raise VerifyException(f"{text_of(types[0])} does not broadcast to {list(shape)}")
        return tensor_type(shape, dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient summed over the repeated axes."""
        return [back.fit(0, back.grad)]

    def compute(self, x: Any) -> Any:
        """Broadcasting."""
        return np.broadcast_to(x, ints(self.properties, "shape"))


@irdl_op_definition
class PermuteOp(ViewingOp):
    """Permutation of axes: axis i of the result is axis dims[i] of the operand."""

    name = "cirh.permute"
    dims = prop_def(DenseArrayBase)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        dims, own = ints(properties, "dims"), shape_of(types[0])
        if sorted(dims) != list(range(len(own))):
            raise VerifyException(f"dims must permute 0..{len(own) - 1}, got {list(dims)}")
        return tensor_type([own[d] for d in dims], dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient permuted back."""
        dims = inverse(ints(self.properties, "dims"))
        return [back.emit(PermuteOp, back.grad, dims=dims)]

    def compute(self, x: Any) -> Any:
        """Axes in another order."""
        return x.transpose(ints(self.properties, "dims"))


@irdl_op_definition
class TransposeOp(ViewingOp):
    """A matrix transposed."""

    name = "cirh.t"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """[m, n] -> [n, m]."""
        require_rank(types[0], 2, "the operand")
        return tensor_type(shape_of(types[0])[::-1], dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(TransposeOp, back.grad)]

    def compute(self, x: Any) -> Any:
        return np.transpose(x)


@dataclass(frozen=True)
class AxisRange:
    """Every `step`th element of an axis from `start` on, before `end`."""

    dim: int
    start: int
    end: int
    step: int

    @property
    def size(self) -> int:
        return len(range(self.start, self.end, self.step))


def part_of(properties: Properties, kind: Tensor) -> AxisRange:
    """Return the part of `kind` given by dim, start, end and step.

    Raises: VerifyException if the axis does not have it
    """
    dim = axis(properties, kind)
    start, end, step = (integer(properties, name) for name in ("start", "end", "step"))
    size = shape_of(kind)[dim]
    if not 0 <= start <= end <= size or step < 1:
        raise VerifyException(
            f"a slice must have 0 <= start <= end <= {size} and step >= 1, got {start}..{end} "
            f"step {step}"
        )
    return AxisRange(dim, start, end, step)


def index_of(properties: Properties, kind: Tensor) -> tuple[int, int]:
    """Return the axis of `kind` and the position on it given by dim and index.

    Raises: VerifyException if the axis is too short
    """
    dim, index = axis(properties, kind), integer(properties, "index")
    if not 0 <= index < shape_of(kind)[dim]:
        raise VerifyException(f"index must be in 0..{shape_of(kind)[dim] - 1}, got {index}")
    return dim, index


@irdl_op_definition
class SliceOp(ViewingOp):
    """Slice of axis `dim`: every `step`th element from `start` on, before `end`."""

    name = "cirh.slice"
    dim = prop_def(IntegerAttr)
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    step = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes, with that of axis `dim` cut."""
        part = part_of(properties, types[0])
        sizes = list(shape_of(types[0]))
        sizes[part.dim] = part.size
        return tensor_type(sizes, dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient in its place, zero elsewhere."""
        sizes = shape_of(type_of(self.x))
        return [back.emit(SliceBackwardOp, back.grad, input_sizes=sizes, **back.options())]

    def compute(self, x: Any) -> Any:
        """Every `step`th element of an axis, from `start` to `end`."""
        return x[_place(self.properties)]


@irdl_op_definition
class SelectOp(ViewingOp):
    """The operand at one position of axis `dim`, without that axis."""

    name = "cirh.select"
    dim = prop_def(IntegerAttr)
    index = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without axis `dim`."""
        dim, _ = index_of(properties, types[0])
        sizes = shape_of(types[0])
        return tensor_type((*sizes[:dim], *sizes[dim + 1 :]), dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient in its place, zero elsewhere."""
        sizes = shape_of(type_of(self.x))
        return [back.emit(SelectBackwardOp, back.grad, input_sizes=sizes, **back.options())]

    def compute(self, x: Any) -> Any:
        """One place of an axis."""
        return x.take(integer(self.properties, "index"), axis=integer(self.properties, "dim"))


@irdl_op_definition
class CloneOp(UnaryOp):
    """A dense copy."""

    name = "cirh.clone"
    COPIES: ClassVar = True
    WRITES_OVER: ClassVar = ()
    LINEAR_IN: ClassVar = (frozenset({0}),)

    def gradients(self, back: Backward) -> Gradients:
        """The gradient unchanged."""
        return [back.grad]

    def compute(self, x: Any) -> Any:
        return np.copy(x)


class PartBackwardOp(CirhOp):
    """The gradient of a part in a tensor of zeros; `input_sizes` are those of the full tensor."""

    grad = operand_def(TensorType)
    input_sizes = prop_def(DenseArrayBase)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def full_type(cls, types: Types, properties: Properties, part: type[CirhOp]) -> Tensor:
        """Return the full tensor's type, of which the gradient must be a part."""
        whole = tensor_type(ints(properties, "input_sizes"), dtype_of(types[0]))
        expected = part.infer([whole], properties)
        if expected != types[0]:
            raise VerifyException(f"the gradient must be {expected}, got {types[0]}")
        return whole


@irdl_op_definition
class SliceBackwardOp(PartBackwardOp):
    """The gradient of `slice`'s operand."""

    name = "cirh.slice_backward"
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    step = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.full_type(types, properties, SliceOp)

    def gradients(self, back: Backward) -> Gradients:
        """The part of the gradient."""
        return [back.emit(SliceOp, back.grad, **back.options("input_sizes"))]

    def compute(self, grad: Any) -> Any:
        """The gradient in zeros."""
        out = np.zeros(ints(self.properties, "input_sizes"), grad.dtype)
        out[_place(self.properties)] = grad
        return out


@irdl_op_definition
class SelectBackwardOp(PartBackwardOp):
    """The gradient of `select`'s operand."""

    name = "cirh.select_backward"
    index = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.full_type(types, properties, SelectOp)

    def gradients(self, back: Backward) -> Gradients:
        """The part of the gradient."""
        return [back.emit(SelectOp, back.grad, **back.options("input_sizes"))]

    def compute(self, grad: Any) -> Any:
        """The gradient in zeros."""
        out = np.zeros(ints(self.properties, "input_sizes"), grad.dtype)
        np.moveaxis(out, integer(self.properties, "dim"), 0)[integer(self.properties, "index")] = (
            grad
        )
        return out


def _place(properties: Properties) -> tuple[slice, ...]:
    start, end, step = (integer(properties, name) for name in ("start", "end", "step"))
    return (*[slice(None)] * integer(properties, "dim"), slice(start, end, step))


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse permutation."""
    return tuple(sorted(range(len(dims)), key=lambda i: dims[i]))


#: Operators that are views of their operand `x`.
VIEWS = (ViewOp, ExpandOp, PermuteOp, TransposeOp, SliceOp, SelectOp)
OPS = (*VIEWS, CloneOp, SliceBackwardOp, SelectBackwardOp)
