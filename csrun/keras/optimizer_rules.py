"""Conversion of a Keras optimizer to csrun's learning algorithm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    Algorithm,
    NAdamAttr,
    Rate,
    RmsPropAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.executable.arrays import Array
from csrun.executable.learning_rate import (
    Constant,
    Cosine,
    Exponential,
    PiecewiseConstant,
    Polynomial,
    Schedule,
    StepNumber,
)
from csrun.executable.loss_scale import LossScaling
from csrun.keras.model_precision import unscaled
from csrun.keras.optimizer_step import OPTIMIZER_FOLDER, RATE_NAME, OptimizerStep
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel, stored_name
from csrun.nn.optimizer import schedule_attribute
from csrun.records.checkpoints import Checkpoint

#: Tensor of a checkpoint: the learning rate that a fit has reached, as the bits of a float64, since
#: floats of a checkpoint are weights.
RATE_TENSOR = "fit/learning_rate"


@dataclass(frozen=True)
class KerasLearning:
    """Algorithms by the torch names of parameters, limits of gradients, and the loss scale.

    step: the optimizer's own update, which is recorded if there is no rule for it.
    changed_values, identity: as in `TracedModel`, of recorded learning rates, by the names of their
        states below `optimizer/`.
    """

    algorithms: Mapping[str, Algorithm]
    clipping: Clipping = UNLIMITED
    scaling: LossScaling | None = None
    step: OptimizerStep | None = None
    changed_values: Mapping[str, Array] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)


def learning_of(
    model: KerasModel, is_mixed: bool, start: Checkpoint | None, rate_changes: bool = False
) -> KerasLearning:
    """Return the updates of a model's optimizer.

    start: checkpoint that the training begins with.
    rate_changes: a learning rate that is a variable is number 0 of each step.

    Raises: UsageError for a learning rate that is a function, and for a checkpoint with velocities
    of the other form
    """
    optimizer, scaling = unscaled(model.keras.optimizer)
    _require_rate(optimizer)
    rate: Schedule | StepNumber | None = _rate(optimizer._learning_rate)
    if rate_changes and isinstance(rate, Constant):
        rate = StepNumber(index=0)
    make, model.state = _rule_of(optimizer), {}
    if _is_recorded(optimizer, start) or _has_no_rule(model, optimizer):
        return _recorded(OptimizerStep(model, optimizer, is_mixed), start)
    assert make is not None, "else it has no rule"
    assert rate is not None, "else it has no rule"
    if getattr(optimizer, "momentum", 0) and isinstance(rate, Constant | StepNumber):
        _require_velocities(start, rate)
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


def rates_of(own: float, start: Checkpoint | None) -> tuple[float, float]:
    """Return the learning rate with which a fit continues, and the first one of its training.

    own: that of the optimizer. It counts if the user has changed it, else that of the checkpoint.
    """
    if start is None or RATE_TENSOR not in start.manifest.tensors:
        return own, own
    reached, first = map(float, start.tensor(RATE_TENSOR).view(np.float64))
    return (reached, first) if own in (reached, first) else (own, own)


def _recorded(step: OptimizerStep, start: Checkpoint | None) -> KerasLearning:
    """Return a recorded update."""
    rates = {} if (own := step.rate) is None else {RATE_NAME: own}
    return replace(learning_of_states(rates, start), step=step)


def learning_of_states(rates: Mapping[str, float], start: Checkpoint | None) -> KerasLearning:
    """Return the learning of updates that the program computes itself.

    rates: learning rates by the names of their states; each is chosen as in `rates_of`.
    """
    changed: dict[str, Array] = {}
    identity: dict[str, str] = {}
    for name, own in rates.items():
        key, first = name.removeprefix(OPTIMIZER_FOLDER), own
        if start is not None and (entry := start.manifest.identity.get(key)) is not None:
            if own in (float(entry), float(start.tensor(name))):
                first = float(entry)
            else:
                changed[name] = np.array(own, np.float32)
        identity[key] = str(first)
    return KerasLearning({}, changed_values=changed, identity=identity)


def _is_recorded(optimizer: Any, start: Checkpoint | None) -> bool:
    """True for an optimizer with steps taken in Keras, whose variables a recorded update has.

    A checkpoint has the optimizer in the form in which the training began.
    """
    if start is None:
        return int(optimizer.iterations) > 0
    return any(name.startswith(OPTIMIZER_FOLDER) for name in start.manifest.tensors)


def _require_velocities(start: Checkpoint | None, rate: Constant | StepNumber) -> None:
    """Raises: UsageError for a checkpoint whose velocities are of the other form"""
    if start is None or start.step == 0 or start.manifest.is_converted:
        return
    was_number = RATE_TENSOR in start.manifest.tensors
    if was_number == isinstance(rate, StepNumber):
        return
    then = "with" if was_number else "without"
    raise UsageError(
        f"{start.path}: its momentum is of a training {then} callbacks that may change the "
        f"learning rate: continue it by fit {then} callbacks, or use another model_dir"
    )


def _require_rate(optimizer: Any) -> None:
    """Raises: UsageError for a learning rate that is a function"""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if not isinstance(optimizer._learning_rate, keras.Variable | schedule):
        raise UsageError(
            f"optimizer {type(optimizer).__name__}: learning_rate is a function, which csrun "
            "cannot call in each step: use a number or a subclass of LearningRateSchedule"
        )


#: Keras's options of `Clipping`; an optimizer has one of them.
_LIMITS = {"clip_norm": "global_clipnorm", "clip_each": "clipnorm", "clip_value": "clipvalue"}


def _rule_of(optimizer: Any) -> "Rule | None":
    # A backend has its own subclasses of keras.optimizers, and so may the user.
    if type(optimizer).__module__.split(".")[0] != "keras":
        return None
    return next((rule for kind, rule in _ALGORITHMS.items() if isinstance(optimizer, kind)), None)


def _has_no_rule(model: KerasModel, optimizer: Any) -> bool:
    """True for an update that no rule covers completely."""
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        return True
    if (rule := _rule_of(optimizer)) is None or _rate(optimizer._learning_rate) is None:
        return True
    is_decayed = optimizer.weight_decay and not _is_plain_descent(optimizer)
    is_limited = any(variable.constraint is not None for variable in model.trained)
    return is_limited or bool(is_decayed and rule not in _DECAYING)


def _is_plain_descent(optimizer: Any) -> bool:
    """True for SGD without momentum, in which decoupled decay equals decay of the gradient."""
    return isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum


def _decay(optimizer: Any, variable: Any) -> float:
    """Return the decoupled decay of a variable."""
    if not optimizer.weight_decay or not optimizer._use_weight_decay(variable):
        return 0.0
    return float(optimizer.weight_decay)


def _adam(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    """Return Adam's rule.

    Source: keras.optimizers.Adam: epsilon is added before the bias correction, which casts the
    betas to float32; the moments have the unrounded ones.
    """
    return AdamAttr.of(
        _attribute(rate),
        (optimizer.beta_1, optimizer.beta_2),
        optimizer.epsilon,
        decoupled=True,
        weight_decay=_decay(optimizer, variable),
        epsilon_hat=True,
        amsgrad=optimizer.amsgrad,
        rounded_betas=True,
    )


def _nadam(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    """Return NAdam's rule. Source: keras.optimizers.Nadam: PyTorch's, with an immediate
    momentum.
    """
    return NAdamAttr.of(
        _attribute(rate),
        (optimizer.beta_1, optimizer.beta_2),
        optimizer.epsilon,
        momentum_decay=1.0,
        decoupled=True,
        weight_decay=_decay(optimizer, variable),
    )


def _sgd(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    """Return SGD's rule. Source: keras.optimizers.SGD: the velocity includes the learning rates."""
    return SgdAttr.of(
        _attribute(rate),
        optimizer.momentum,
        optimizer.nesterov,
        _decay(optimizer, variable),
        rate_inside=_has_rates(optimizer, rate),
    )


def _adadelta(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    return AdadeltaAttr.of(_attribute(rate), optimizer.rho, optimizer.epsilon)


def _rmsprop(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    """Return RMSProp's rule. Source: keras.optimizers.RMSprop: epsilon is inside the root."""
    return RmsPropAttr.of(
        _attribute(rate),
        optimizer.rho,
        optimizer.epsilon,
        optimizer.momentum or 0.0,
        optimizer.centered,
        epsilon_inside=True,
        rate_inside=_has_rates(optimizer, rate),
    )


def _adagrad(optimizer: Any, rate: Schedule | StepNumber, variable: Any) -> Algorithm:
    """Return Adagrad's rule. Source: keras.optimizers.Adagrad: epsilon is inside the root."""
    return AdagradAttr.of(
        _attribute(rate),
        initial_accumulator=optimizer.initial_accumulator_value,
        epsilon=optimizer.epsilon,
        epsilon_inside=True,
    )


def _has_rates(optimizer: Any, rate: Schedule | StepNumber) -> bool:
    """Return whether velocities need the rates of their steps, instead of that of the update."""
    return bool(optimizer.momentum) and not isinstance(rate, Constant)


Rule = Callable[[Any, Schedule | StepNumber, Any], Algorithm]
_ALGORITHMS: dict[type, Rule] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adam: _adam,
    keras.optimizers.Nadam: _nadam,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.RMSprop: _rmsprop,
}
_DECAYING = (_adam, _nadam)


def _attribute(rate: Schedule | StepNumber) -> Rate:
    """Return a learning rate as a CIRH attribute."""
    if isinstance(rate, StepNumber):
        return StepNumberAttr.of(rate.index)
    return schedule_attribute(rate)


def _rate(rate: Any) -> Schedule | None:
    """Return the schedule of a learning rate; None for an unsupported one."""
    schedules = keras.optimizers.schedules
    match rate:
        case keras.Variable():
            return Constant(learning_rate=float(rate))
        case schedules.PiecewiseConstantDecay():
            # Keras changes the rate after the boundary's step
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
    return None
