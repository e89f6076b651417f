"""A parameter's first value, as an attribute."""

from enum import StrEnum

from xdsl.dialects.builtin import Float64Type, FloatAttr, StringAttr, f64
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

Double = FloatAttr[Float64Type]


class Distribution(StrEnum):
    """What a parameter's first value is drawn from."""

    ZEROS = "zeros"
    ONES = "ones"
    UNIFORM = "uniform"  # in [-scale, scale)
    NORMAL = "normal"  # standard deviation `scale`


@irdl_attr_definition
class InitializerAttr(ParametrizedAttribute):
    """A parameter's first value: a distribution and its scale."""

    name = "cirh.initializer"
    distribution: StringAttr
    scale: Double

    @classmethod
    def of(cls, distribution: Distribution, scale: float = 0.0) -> "InitializerAttr":
        """An initializer from Python values."""
        return cls(StringAttr(distribution), FloatAttr(scale, f64))

    def verify(self) -> None:
        """Raises: VerifyException when the distribution is unknown or the scale is negative."""
        known, found = [d.value for d in Distribution], self.distribution.data
        if found not in known:
            raise VerifyException(f"distribution must be one of {', '.join(known)}, got {found}")
        if not self.scale.value.data >= 0:
            raise VerifyException(f"initializer scale must be >= 0, got {self.scale.value.data}")


ATTRIBUTES: tuple[type[Attribute], ...] = (InitializerAttr,)
