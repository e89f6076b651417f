"""Operators of a model besides arithmetic: inputs, parameters, constants, loss and outputs."""

from enum import StrEnum
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    BoolAttr,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import (
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from csrun.base.half_formats import WORD
from csrun.cirh.ops.base import EFFECT_ASSEMBLY, CirhOp, Plain, Properties, Types, attribute
from csrun.cirh.types import Tensor, dtype_of, is_float, shape_of, text_of, type_of

Double = FloatAttr[Float64Type]


class Distribution(StrEnum):
    """Distribution of a parameter's initial values."""

    ZEROS = "zeros"
    ONES = "ones"
    UNIFORM = "uniform"  # uniform in [-scale, scale)
    NORMAL = "normal"  # normal with standard deviation `scale`


@irdl_attr_definition
class InitializerAttr(ParametrizedAttribute):
    """Initial value of a parameter: a distribution and its scale."""

    name = "cirh.initializer"
    distribution: StringAttr
    scale: Double

    @classmethod
    def of(cls, distribution: Distribution, scale: float = 0.0) -> "InitializerAttr":
        return cls(StringAttr(distribution), FloatAttr(scale, f64))

    def verify(self) -> None:
        """Raises: VerifyException if the distribution is unknown or the scale is negative"""
        known, found = [d.value for d in Distribution], self.distribution.data
        if found not in known:
            raise VerifyException(f"distribution must be one of {', '.join(known)}, got {found}")
        if not self.scale.value.data >= 0:
            raise VerifyException(f"initializer scale must be >= 0, got {self.scale.value.data}")


class LeafOp(CirhOp):
    """An operator without operands; its type is declared, not inferred."""

    NEEDS_KERNEL: ClassVar = False

    out = result_def(TensorType)

    @classmethod
    def declare(cls, kind: Tensor, **properties: Plain) -> Self:
        """Create an operator of this type."""
        attributes = {name: attribute(value) for name, value in properties.items()}
        return cls(result_types=[kind], properties=attributes)

    def verify_(self) -> None:
        """Do nothing: the declared type is the type."""


@irdl_attr_definition
class PartAttr(ParametrizedAttribute):
    """Shard of a model tensor that a parameter holds: rows from `first` on.

    The tensor has `rows` rows as stored; for one stored transposed these are its columns.
    """

    name = "cirh.part"
    tensor: StringAttr
    rows: IntegerAttr
    first: IntegerAttr

    @classmethod
    def of(cls, tensor: str, rows: int, first: int) -> "PartAttr":
        """Return the attribute of a tensor with this many rows."""
        return cls(StringAttr(tensor), IntegerAttr(rows, i64), IntegerAttr(first, i64))


@irdl_op_definition
class InputOp(LeafOp):
    """One array of a batch, by name.

    from_script: created by the script in each step, without a batch axis.
    """

    name = "cirh.input"
    symbol = prop_def(StringAttr)
    from_script = opt_prop_def(BoolAttr)
    FORM: ClassVar = "$symbol attr-dict `:` type($out)"


class StoredOp(LeafOp):
    """A tensor that outlives the step, named `<layer>/<what>`; `scope` is its layer."""

    symbol = prop_def(StringAttr)
    initializer = prop_def(InitializerAttr)
    FORM: ClassVar = "$symbol attr-dict `:` type($out)"

    def verify_(self) -> None:
        """Raises: VerifyException without a layer, or unless it has floats or words"""
        if self.scope is None:
            raise VerifyException(f"{self._what} must have a scope, its layer")
        if not is_float(type_of(self.out)) and dtype_of(type_of(self.out)) != WORD:
            raise VerifyException(f"{self._what}: got {self.out.type}")

    @property
    def tensor(self) -> str:
        """Name of the model's tensor; for a shard that of the full tensor."""
        return self.symbol.data

    @property
    def _what(self) -> str:
        return f"{self.name.removeprefix('cirh.')} {self.symbol.data}"


@irdl_op_definition
class ParameterOp(StoredOp):
    """A weight tensor, or a shard of one, which is trained by its gradient.

    transposed: stored transposed.
    """

    name = "cirh.parameter"
    part = opt_prop_def(PartAttr)
    transposed = opt_prop_def(BoolAttr)

    @property
    def tensor(self) -> str:
        return self.symbol.data if self.part is None else self.part.tensor.data


@irdl_op_definition
class StateOp(StoredOp):
    """State changed in training without a gradient: an `assign` gives its next value.

    of_step: passed between the programs of one step, and not part of checkpoints.
    """

    name = "cirh.state"
    of_step = opt_prop_def(BoolAttr)


@irdl_op_definition
class FullOp(LeafOp):
    """A tensor filled with one value."""

    name = "cirh.full"
    value = prop_def(FloatAttr)
    FORM: ClassVar = "attr-dict `:` type($out)"


@irdl_op_definition
class LossOp(CirhOp):
    """Marks the scalar that training and evaluation report; training usually minimizes it."""

    name = "cirh.loss"
    value = operand_def(TensorType)
    FORM: ClassVar = EFFECT_ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor | None:
        """No result; the loss is a scalar."""
        require_scalar(types[0])
        return None


@irdl_op_definition
class OutputOp(CirhOp):
    """A value for the host after each step, by name."""

    name = "cirh.output"
    symbol = prop_def(StringAttr)
    value = operand_def(TensorType)
    FORM: ClassVar = "$symbol $value attr-dict `:` type($value)"

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor | None:
        return None


def require_scalar(kind: Tensor) -> None:
    """Raises: VerifyException unless the tensor is a float scalar"""
    if shape_of(kind) != () or not is_float(kind):
        raise VerifyException(
            f"the loss must be a scalar, got shape {text_of(kind)}: reduce it, for example by mean"
        )


OPS = (InputOp, ParameterOp, StateOp, FullOp, LossOp, OutputOp)
ATTRIBUTES: tuple[type[Attribute], ...] = (InitializerAttr, PartAttr)
