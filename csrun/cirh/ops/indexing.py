"""Lookups along an axis by indices, forward and backward."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    Reads,
    Types,
    axis,
    integer,
    ints,
    require_rank,
)
from csrun.cirh.ops.embedding import require_indices
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


class IndexingOp(CirhOp):
    """x looked up along axis `dim`."""

    x = operand_def(TensorType)
    indices = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)


class IndexingBackwardOp(CirhOp):
    """Gradients added at the indices of a lookup, in zeros of `input_sizes`."""

    grad = operand_def(TensorType)
    indices = operand_def(TensorType)
    input_sizes = prop_def(DenseArrayBase)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def looked_up_type(cls, types: Types, properties: Properties, kind: type[CirhOp]) -> Tensor:
        """Return the type of the looked-up tensor."""
        grad, indices = types
        x = tensor_type(ints(properties, "input_sizes"), dtype_of(grad))
        expected = kind.infer((x, indices), properties)
        if expected != grad:
            raise VerifyException(f"the gradient must be {expected}, got {grad}")
        return x


@irdl_op_definition
class GatherOp(IndexingOp):
    """out[i][j] = x[indices[i][j]][j] for axis 0 of two, and so on."""

    name = "cirh.gather"
    READS: ClassVar = Reads.CONTIGUOUS
    BY_SAMPLE: ClassVar = True

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The shape of the indices, which have the rank of x and are nowhere longer except along
        `dim`.
        """
        x, indices = types
        dim = axis(properties, x)
        require_indices(indices)
        own, full = shape_of(indices), shape_of(x)
        fits = len(own) == len(full) and all(
            d == dim or a <= b for d, (a, b) in enumerate(zip(own, full, strict=True))
        )
        if not fits:
            raise VerifyException(
                f"indices must have the rank of {text_of(x)} and no larger size except along "
                f"axis {dim}, got {text_of(indices)}"
            )
        return tensor_type(own, dtype_of(x))

    def gradients(self, back: Backward) -> Gradients:
        """g added at the indices of the lookup; indices have none."""
        sizes = shape_of(type_of(self.x))
        kind = GatherBackwardOp
        return [
            back.emit(kind, back.grad, self.indices, input_sizes=sizes, **back.options()),
            None,
        ]

    def compute(self, x: Any, indices: Any) -> Any:
        return x[_mesh(indices, integer(self.properties, "dim"))]


@irdl_op_definition
class GatherBackwardOp(IndexingBackwardOp):
    """The gradient of `gather`'s operand."""

    name = "cirh.gather_backward"
    BY_SAMPLE: ClassVar = True

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.looked_up_type(types, properties, GatherOp)

    def compute(self, grad: Any, indices: Any) -> Any:
        out = np.zeros(ints(self.properties, "input_sizes"), grad.dtype)
        np.add.at(out, _mesh(indices, integer(self.properties, "dim")), grad)
        return out


@irdl_op_definition
class IndexSelectOp(IndexingOp):
    """Slices of axis `dim` at the indices, in their order."""

    name = "cirh.index_select"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """x [..., N, ...], indices [M] -> [..., M, ...]."""
        x, indices = types
        dim = axis(properties, x)
        require_indices(indices)
        require_rank(indices, 1, "the indices")
        sizes = shape_of(x)
        return tensor_type((*sizes[:dim], *shape_of(indices), *sizes[dim + 1 :]), dtype_of(x))

    def gradients(self, back: Backward) -> Gradients:
        """g added at the indices of the lookup; indices have none."""
        sizes = shape_of(type_of(self.x))
        kind = IndexSelectBackwardOp
        return [
            back.emit(kind, back.grad, self.indices, input_sizes=sizes, **back.options()),
            None,
        ]

    def compute(self, x: Any, indices: Any) -> Any:
        return np.take(x, indices, axis=integer(self.properties, "dim"))


@irdl_op_definition
class IndexSelectBackwardOp(IndexingBackwardOp):
    """The gradient of `index_select`'s operand."""

    name = "cirh.index_select_backward"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.looked_up_type(types, properties, IndexSelectOp)

    def gradients(self, back: Backward) -> Gradients:
        """g looked up at the indices, which have none."""
        dim = integer(self.properties, "dim")
        return [back.emit(IndexSelectOp, back.grad, self.indices, dim=dim), None]

    def compute(self, grad: Any, indices: Any) -> Any:
        out = np.zeros(ints(self.properties, "input_sizes"), grad.dtype)
        before = (slice(None),) * integer(self.properties, "dim")
        np.add.at(out, (*before, indices), grad)
        return out


def _mesh(indices: Any, dim: int) -> tuple[Any, ...]:
    """Return the indices of all elements, axis by axis."""
    index = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    index[dim] = indices
    return tuple(index)


OPS = (GatherOp, GatherBackwardOp, IndexSelectOp, IndexSelectBackwardOp)
