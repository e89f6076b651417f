"""Learning rates as attributes: schedules, and numbers passed with each step."""

from collections.abc import Mapping
from typing import Self

from xdsl.dialects import builtin
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import Plain, attribute

Number = int | float | tuple[int, ...] | tuple[float, ...]

_LINE = ("initial_learning_rate", "end_learning_rate", "steps", "warmup_steps")
#: Parameters of each schedule.
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "constant": ("learning_rate", "warmup_steps"),
    "linear": _LINE,
    "cosine": _LINE,
    "polynomial": (*_LINE, "power"),
    "exponential": ("initial_learning_rate", "decay_rate", "steps", "warmup_steps"),
    "piecewise_constant": ("boundaries", "values", "warmup_steps"),
}


@irdl_attr_definition
class ScheduleAttr(ParametrizedAttribute):
    """A learning rate schedule by name, and its parameters."""

    name = "cirh.schedule"
    kind: builtin.StringAttr
    options: builtin.DictionaryAttr

    @classmethod
    def of(cls, kind: str, options: Mapping[str, Number]) -> Self:
        plain: Mapping[str, Plain] = options
        return cls(
            builtin.StringAttr(kind),
            builtin.DictionaryAttr({name: attribute(v) for name, v in plain.items()}),
        )

    @classmethod
    def constant(cls, learning_rate: float) -> Self:
        """Return the schedule of a constant rate."""
        return cls.of("constant", {"learning_rate": float(learning_rate), "warmup_steps": 0})

    @property
    def numbers(self) -> dict[str, Number]:
        return {name: _number(value) for name, value in self.options.data.items()}

    def verify(self) -> None:
        """Raises: VerifyException for an unknown schedule, or parameters that are not its own"""
        known, names = SCHEDULES.get(self.kind.data), set(self.options.data)
        if known is None:
            raise VerifyException(
                f"schedule must be one of {', '.join(SCHEDULES)}, got {self.kind.data}"
            )
        if names != set(known):
            raise VerifyException(
                f"schedule {self.kind.data} takes {', '.join(known)}, got "
                f"{', '.join(sorted(names))}"
            )


@irdl_attr_definition
class StepNumberAttr(ParametrizedAttribute):
    """Number `index` of those passed with each step, for values that are not known in advance."""

    name = "cirh.step_number"
    index: builtin.IntAttr

    @classmethod
    def of(cls, index: int) -> Self:
        return cls(builtin.IntAttr(index))

    def verify(self) -> None:
        """Raises: VerifyException for a negative index"""
        if self.index.data < 0:
            raise VerifyException(f"the index of a step number must be >= 0, got {self.index.data}")


Rate = ScheduleAttr | StepNumberAttr


def _number(value: Attribute) -> Number:
    match value:
        case builtin.IntegerAttr():
            return value.value.data
        case builtin.FloatAttr():
            return float(value.value.data)
        case builtin.DenseArrayBase():
            return tuple(value.iter_values())
        case _:
            raise VerifyException(f"schedule options must be numbers, got {value}")
