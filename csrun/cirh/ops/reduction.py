"""Reductions along axes."""

from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import ASSEMBLY, CirhOp, Properties, Types, axis, ints
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type


@irdl_op_definition
class SumOp(CirhOp):
    """The sum over `dims`, which stay as axes of size 1 with `keepdim`."""

    name = "cirh.sum"
    x = operand_def(TensorType)
    dims = prop_def(DenseArrayBase)
    keepdim = prop_def(BoolAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without the summed axes."""
        own, dims = shape_of(types[0]), ints(properties, "dims")
        if len(set(dims)) != len(dims) or not set(dims) <= set(range(len(own))):
            raise VerifyException(f"dims must be axes of {types[0]}, got {list(dims)}")
        keep = properties["keepdim"] == BoolAttr.from_bool(True)
        shape = [1 if d in dims else n for d, n in enumerate(own) if keep or d not in dims]
        return tensor_type(shape, dtype_of(types[0]))


@irdl_op_definition
class ArgmaxOp(CirhOp):
    """The index of the largest value along `dim`, the first one when there are several."""

    name = "cirh.argmax"
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes without axis `dim`, int64."""
        dim = axis(properties, types[0])
        shape = [n for d, n in enumerate(shape_of(types[0])) if d != dim]
        return tensor_type(shape, "int64")


OPS = (SumOp, ArgmaxOp)
