"""Parts of a tensor put in their places: what slices and selections make of gradients, and cat."""

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import (
    ASSEMBLY,
    CirhOp,
    Properties,
    Types,
    axis,
    ints,
    require_same_dtype,
)
from csrun.cirh.ops.shape import SelectOp, SliceOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of


class PartBackwardOp(CirhOp):
    """The gradient of a part in a tensor of zeros; `input_sizes` are those of the whole."""

    grad = operand_def(TensorType)
    input_sizes = prop_def(DenseArrayBase)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

    @classmethod
    def of_part(cls, types: Types, properties: Properties, part: type[CirhOp]) -> Tensor:
        """The whole's type, of which the gradient must be a part."""
        whole = tensor_type(ints(properties, "input_sizes"), dtype_of(types[0]))
        expected = part.infer([whole], properties)
        if expected != types[0]:
            raise VerifyException(f"the gradient must be {expected}, got {types[0]}")
        return whole


@irdl_op_definition
class SliceBackwardOp(PartBackwardOp):
    """The gradient of what `slice` was taken of."""

    name = "cirh.slice_backward"
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    step = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.of_part(types, properties, SliceOp)


@irdl_op_definition
class SelectBackwardOp(PartBackwardOp):
    """The gradient of what `select` was taken of."""

    name = "cirh.select_backward"
    index = prop_def(IntegerAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        return cls.of_part(types, properties, SelectOp)


@irdl_op_definition
class CatOp(CirhOp):
    """Tensors one behind the other along axis `dim`."""

    name = "cirh.cat"
    tensors = var_operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    out = result_def(TensorType)
    assembly_format = ASSEMBLY

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
            raise VerifyException(f"shapes must differ along axis {dim} only, got {shapes}")
        sizes = list(shape_of(types[0]))
        sizes[dim] = sum(shape_of(t)[dim] for t in types)
        return tensor_type(sizes, dtype_of(types[0]))


OPS = (SliceBackwardOp, SelectBackwardOp, CatOp)
