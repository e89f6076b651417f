"""Concatenation of tensors."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    CirhOp,
    Properties,
    ResultLayout,
    Types,
    axis,
    integer,
    require_same_dtype,
)
from csrun.cirh.ops.shape import SliceOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


@irdl_op_definition
class CatOp(CirhOp):
    """Concatenation of tensors along axis `dim`."""

    name = "cirh.cat"
    COPIES: ClassVar = True
    BY_SAMPLE: ClassVar = True
    RESULT_LAYOUT: ClassVar = ResultLayout.STRIDED
    tensors = var_operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operands' sizes, those of axis `dim` added."""
        if not types:
            raise VerifyException("at least one tensor is needed")
        require_same_dtype(types)
        dim = axis(properties, types[0])
        rests = {(*shape_of(t)[:dim], *shape_of(t)[dim + 1 :]) for t in types}
        if len(rests) > 1 or len({len(shape_of(t)) for t in types}) > 1:
            shapes = ", ".join(map(text_of, types))
            raise VerifyException(f"shapes may differ along axis {dim} only, got {shapes}")
        sizes = list(shape_of(types[0]))
        sizes[dim] = sum(shape_of(t)[dim] for t in types)
        return tensor_type(sizes, dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """To each tensor its part of the gradient."""
        dim, start = integer(self.properties, "dim"), 0
        found: list[SSAValue | None] = []
        for operand, wanted in zip(back.operands, back.wanted, strict=True):
            end = start + shape_of(type_of(operand))[dim]
            place = {"dim": dim, "start": start, "end": end, "step": 1}
            found.append(back.emit(SliceOp, back.grad, **place) if wanted else None)
            start = end
        return found

    def compute(self, *tensors: Any) -> Any:
        """Return the concatenation."""
        return np.concatenate(tensors, axis=integer(self.properties, "dim"))


OPS = (CatOp,)
