"""A Keras optimizer as csrun's learning algorithm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    Algorithm,
    NAdamAttr,
    RmsPropAttr,
    SgdAttr,
)
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.executable.learning_rate import (
    Constant,
    Cosine,
    Exponential,
    PiecewiseConstant,
    Polynomial,
    Schedule,
)
from csrun.executable.loss_scale import LossScaling
from csrun.keras.model_precision import unscaled
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel, stored_name
from csrun.nn.optimizer import schedule_attribute


@dataclass(frozen=True)
class KerasLearning:
    """Algorithms by the torch names of parameters, limits of gradients, and the loss's scale."""

    algorithms: Mapping[str, Algorithm]
    clipping: Clipping = UNLIMITED
    scaling: LossScaling | None = None


def learning_of(model: KerasModel) -> KerasLearning:
    """The updates of a model's optimizer.

    Raises: UsageError for an optimizer, an option or a schedule that is not supported
    """
    optimizer, scaling = unscaled(model.keras.optimizer)
    name = type(optimizer).__name__
    # A backend has classes of its own, below those of keras.optimizers; so may the user.
    is_own = type(optimizer).__module__.split(".")[0] == "keras"
    make = next((make for kind, make in _ALGORITHMS.items() if isinstance(optimizer, kind)), None)
    if make is None or not is_own:
        known = ", ".join(sorted(kind.__name__ for kind in _ALGORITHMS))
        raise UsageError(f"optimizer {name} is not supported: use one of {known}")
    for option in _NOT_SUPPORTED:
        if getattr(optimizer, option, None):
            raise UsageError(f"{name}: {option} is not supported: leave it out")
    rate = _rate(name, optimizer._learning_rate)
    algorithms = {
        stored_name(variable).replace("/", "."): make(optimizer, rate, variable)
        for variable in model.trained
    }
    limits = {
        name: float(number)
        for name, option in _LIMITS.items()
        if (number := getattr(optimizer, option))
    }
    return KerasLearning(algorithms, Clipping(**limits), scaling)


#: Keras's options of `Clipping`; an optimizer has one of them.
_LIMITS = {"clip_norm": "global_clipnorm", "clip_each": "clipnorm", "clip_value": "clipvalue"}


#: Options of every Keras optimizer that change an update in a way that csrun does not have.
_NOT_SUPPORTED = (
    "use_ema",
    "gradient_accumulation_steps",
)


def _decay(optimizer: Any, variable: Any) -> float:
    """The decoupled decay of a variable."""
    if not optimizer.weight_decay or not optimizer._use_weight_decay(variable):
        return 0.0
    return float(optimizer.weight_decay)


def _adam(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    """Source: keras.optimizers.Adam: epsilon is added before the bias correction."""
    return AdamAttr.of(
        schedule_attribute(rate),
        (optimizer.beta_1, optimizer.beta_2),
        optimizer.epsilon,
        decoupled=True,
        weight_decay=_decay(optimizer, variable),
        epsilon_hat=True,
        amsgrad=optimizer.amsgrad,
    )


def _nadam(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    """Source: keras.optimizers.Nadam: PyTorch's with a momentum that comes as fast as it can."""
    return NAdamAttr.of(
        schedule_attribute(rate),
        (optimizer.beta_1, optimizer.beta_2),
        optimizer.epsilon,
        momentum_decay=1.0,
        decoupled=True,
        weight_decay=_decay(optimizer, variable),
    )


def _sgd(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    """Source: keras.optimizers.SGD: the velocity has the learning rates of its steps."""
    _require_no_decay(optimizer)
    return SgdAttr.of(
        schedule_attribute(rate),
        optimizer.momentum,
        optimizer.nesterov,
        rate_inside=_has_rates(optimizer, rate),
    )


def _adadelta(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    _require_no_decay(optimizer)
    return AdadeltaAttr.of(schedule_attribute(rate), optimizer.rho, optimizer.epsilon)


def _rmsprop(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    """Source: keras.optimizers.RMSprop: epsilon is below the root."""
    _require_no_decay(optimizer)
    return RmsPropAttr.of(
        schedule_attribute(rate),
        optimizer.rho,
        optimizer.epsilon,
        optimizer.momentum or 0.0,
        optimizer.centered,
        epsilon_inside=True,
        rate_inside=_has_rates(optimizer, rate),
    )


def _adagrad(optimizer: Any, rate: Schedule, variable: Any) -> Algorithm:
    """Source: keras.optimizers.Adagrad: epsilon is below the root."""
    _require_no_decay(optimizer)
    return AdagradAttr.of(
        schedule_attribute(rate),
        initial_accumulator=optimizer.initial_accumulator_value,
        epsilon=optimizer.epsilon,
        epsilon_inside=True,
    )


def _has_rates(optimizer: Any, rate: Schedule) -> bool:
    """Return whether velocities need the rates of their steps, rather than that of the update."""
    return bool(optimizer.momentum) and not isinstance(rate, Constant)


def _require_no_decay(optimizer: Any) -> None:
    if optimizer.weight_decay:
        raise UsageError(
            f"{type(optimizer).__name__}: weight_decay is not supported: leave it out, or use AdamW"
        )


_ALGORITHMS: dict[type, Callable[[Any, Schedule, Any], Algorithm]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adam: _adam,
    keras.optimizers.Nadam: _nadam,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.RMSprop: _rmsprop,
}


def _rate(name: str, rate: Any) -> Schedule:
    """The schedule of a learning rate."""
    schedules = keras.optimizers.schedules
    if not isinstance(rate, schedules.LearningRateSchedule):
        return Constant(learning_rate=float(rate))
    match rate:
        case schedules.PiecewiseConstantDecay():
            # Keras changes the rate after the boundary's step.
            boundaries = tuple(int(step) + 1 for step in rate.boundaries)
            return PiecewiseConstant(boundaries=boundaries, values=tuple(map(float, rate.values)))
        case schedules.PolynomialDecay() if not rate.cycle:
            return Polynomial(
                initial_learning_rate=rate.initial_learning_rate,
                steps=rate.decay_steps,
                end_learning_rate=rate.end_learning_rate,
                power=rate.power,
            )
        case schedules.ExponentialDecay() if not rate.staircase:
            return Exponential(
                initial_learning_rate=rate.initial_learning_rate,
                steps=rate.decay_steps,
                decay_rate=rate.decay_rate,
            )
        case schedules.CosineDecay() if rate.warmup_target is None:
            return Cosine(
                initial_learning_rate=rate.initial_learning_rate,
                steps=rate.decay_steps,
                end_learning_rate=rate.initial_learning_rate * rate.alpha,
            )
    raise UsageError(
        f"{name}: the schedule {type(rate).__name__} is not supported: use PiecewiseConstantDecay, "
        "ExponentialDecay without staircase, PolynomialDecay without cycle, or CosineDecay without "
        "warm-up"
    )
