"""Learning algorithms as attributes: what `minimize` asks for, and what each update does."""

import re
from collections.abc import Mapping, Sequence
from typing import Self

from xdsl.dialects import builtin
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import Plain, attribute

Double = builtin.FloatAttr[builtin.Float64Type]
Patterns = builtin.ArrayAttr[builtin.StringAttr]
Number = int | float | tuple[int, ...] | tuple[float, ...]

_LINE = ("initial_learning_rate", "end_learning_rate", "steps", "warmup_steps")
#: The numbers that each schedule is made of.
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "constant": ("learning_rate", "warmup_steps"),
    "linear": _LINE,
    "cosine": _LINE,
    "polynomial": (*_LINE, "power"),
    "piecewise_constant": ("boundaries", "values", "warmup_steps"),
}


@irdl_attr_definition
class ScheduleAttr(ParametrizedAttribute):
    """A learning rate over the steps: a schedule by name, and its numbers."""

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
        """The same rate at every step."""
        return cls.of("constant", {"learning_rate": float(learning_rate), "warmup_steps": 0})

    @property
    def numbers(self) -> dict[str, Number]:
        return {name: _number(value) for name, value in self.options.data.items()}

    def verify(self) -> None:
        """Raises: VerifyException when the schedule is unknown, or its numbers are not its own."""
        known, names = SCHEDULES.get(self.kind.data), set(self.options.data)
        if known is None:
            raise VerifyException(
                f"schedule must be one of {', '.join(SCHEDULES)}, got {self.kind.data}"
            )
        if names != set(known):
            raise VerifyException(
                f"schedule {self.kind.data} has the numbers {', '.join(known)}, "
                f"got {', '.join(sorted(names))}"
            )


@irdl_attr_definition
class SgdAttr(ParametrizedAttribute):
    """Stochastic gradient descent, as torch.optim.SGD computes it.

    g = grad + weight_decay w; v = momentum v + g; w = w - learning_rate u, where u is v, or
    g + momentum v with nesterov. Parameters in whose name a pattern of `exclude` is found do not
    decay.

    Source: Sutskever et al. 2013, sections 2 and 3
    """

    name = "cirh.sgd_algorithm"
    learning_rate: ScheduleAttr
    momentum: Double
    nesterov: builtin.BoolAttr
    weight_decay: Double
    exclude: Patterns

    @classmethod
    def of(
        cls,
        learning_rate: float | ScheduleAttr,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        exclude: Sequence[str] = (),
    ) -> Self:
        return cls(
            _schedule(learning_rate),
            builtin.FloatAttr(momentum, builtin.f64),
            builtin.BoolAttr.from_bool(nesterov),
            builtin.FloatAttr(weight_decay, builtin.f64),
            _patterns(exclude),
        )

    def for_parameter(self, name: str) -> Self:
        """The algorithm of one parameter, where nothing is left to exclude."""
        if not self.exclude.data:
            return self
        decay = _decay_of(name, self.weight_decay, self.exclude)
        plain = _patterns(())
        return type(self)(self.learning_rate, self.momentum, self.nesterov, decay, plain)

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        momentum = self.momentum.value.data
        _require(0 <= momentum < 1, "momentum must be in [0, 1)", momentum)
        _require(
            momentum > 0 or not self.nesterov.value.data, "nesterov needs a momentum > 0", momentum
        )
        _check_decay(self.weight_decay, self.exclude)


@irdl_attr_definition
class AdamAttr(ParametrizedAttribute):
    """Adam, as torch.optim.Adam computes it; decoupled, as torch.optim.AdamW does.

    Source: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2
    """

    name = "cirh.adam_algorithm"
    learning_rate: ScheduleAttr
    beta1: Double
    beta2: Double
    epsilon: Double
    decoupled: builtin.BoolAttr
    weight_decay: Double
    exclude: Patterns

    @classmethod
    def of(
        cls,
        learning_rate: float | ScheduleAttr,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        decoupled: bool = False,
        weight_decay: float = 0.0,
        exclude: Sequence[str] = (),
    ) -> Self:
        return cls(
            _schedule(learning_rate),
            builtin.FloatAttr(betas[0], builtin.f64),
            builtin.FloatAttr(betas[1], builtin.f64),
            builtin.FloatAttr(epsilon, builtin.f64),
            builtin.BoolAttr.from_bool(decoupled),
            builtin.FloatAttr(weight_decay, builtin.f64),
            _patterns(exclude),
        )

    def for_parameter(self, name: str) -> Self:
        """The algorithm of one parameter, where nothing is left to exclude."""
        if not self.exclude.data:
            return self
        decay = _decay_of(name, self.weight_decay, self.exclude)
        return type(self)(
            self.learning_rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            self.decoupled,
            decay,
            _patterns(()),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        for beta in (self.beta1.value.data, self.beta2.value.data):
            _require(0 <= beta < 1, "betas must be in [0, 1)", beta)
        _require(self.epsilon.value.data > 0, "epsilon must be > 0", self.epsilon.value.data)
        _check_decay(self.weight_decay, self.exclude)


def _schedule(rate: float | ScheduleAttr) -> ScheduleAttr:
    return rate if isinstance(rate, ScheduleAttr) else ScheduleAttr.constant(rate)


def _patterns(patterns: Sequence[str]) -> Patterns:
    return builtin.ArrayAttr([builtin.StringAttr(pattern) for pattern in patterns])


def _decay_of(name: str, decay: Double, exclude: Patterns) -> Double:
    excluded = any(re.search(pattern.data, name) for pattern in exclude.data)
    return builtin.FloatAttr(0.0, builtin.f64) if excluded else decay


def _check_decay(decay: Double, exclude: Patterns) -> None:
    _require(decay.value.data >= 0, "weight_decay must be >= 0", decay.value.data)
    for pattern in exclude.data:
        try:
            re.compile(pattern.data)
        except re.error as error:
            raise VerifyException(
                f"a pattern of names must be a regular expression, got {pattern.data!r}: {error}"
            ) from error


def _require(holds: bool, rule: str, found: float) -> None:
    if not holds:
        raise VerifyException(f"{rule}, got {found}")


def _number(value: Attribute) -> Number:
    match value:
        case builtin.IntegerAttr():
            return value.value.data
        case builtin.FloatAttr():
            return float(value.value.data)
        case builtin.DenseArrayBase():
            return tuple(value.iter_values())
        case _:
            raise VerifyException(f"a schedule is made of numbers, got {value}")


ATTRIBUTES: tuple[type[Attribute], ...] = (ScheduleAttr, SgdAttr, AdamAttr)
Algorithm = SgdAttr | AdamAttr
