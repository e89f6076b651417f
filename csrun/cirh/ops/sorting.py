"""Order of values along an axis."""

from typing import Any

import numpy as np
from xdsl.dialects.builtin import BoolAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from csrun.cirh.ops.base import CirhOp, Properties, Types, axis, integer
from csrun.cirh.types import Tensor, shape_of, tensor_type


@irdl_op_definition
class ArgsortOp(CirhOp):
    """The indices along `dim` in the order of their values; of equal values the first comes first.

    NaN is above all.
    """

    name = "cirh.argsort"
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    descending = prop_def(BoolAttr)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes, int64."""
        axis(properties, types[0])
        return tensor_type(shape_of(types[0]), "int64")

    def compute(self, x: Any) -> Any:
        """A stable sort; the descending one is that of the reversed values, read backwards."""
        dim = integer(self.properties, "dim")
        if not integer(self.properties, "descending"):
            return x.argsort(axis=dim, kind="stable")
        order = np.flip(x, dim).argsort(axis=dim, kind="stable")
        return x.shape[dim] - 1 - np.flip(order, dim)


OPS = (ArgsortOp,)
