"""Loss scaler, in both forms that the original's scripts use.

    scaler(loss).backward(); optimizer.step()

    scaler.scale(loss).backward(); scaler.unscale_(optimizer); scaler.step(optimizer)
    scaler.update()

The program scales the loss where its backward pass begins, and the updates unscale the gradients.
All values that the loop sees are unscaled, so the calls change no tensors of the loop.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, Protocol, Self

import msgspec
import torch

from csrun.base.errors import UsageError
from csrun.base.half_formats import SCALE_KEYS, HalfFormat
from csrun.executable.loss_scale import Dialect, LossScaling, ScaleState, dynamic, invalid_constant
from csrun.pytorch.errors import user_line
from csrun.pytorch.user import active

_DYNAMIC = ("dynamic", "tf_dynamic")


class ScaledRun(Protocol):
    """Run that applies a scaler's rule."""

    def scale_state(self, *, before_last_step: bool = False) -> ScaleState | None:
        """Return the scale and its counters after the last step, or before it; None if none is
        applied.
        """


class GradScaler:
    """Loss scaler.

    loss_scale: "dynamic", "tf_dynamic" or a number; None or 1 for no scaling.
    init_scale: another name of initial_loss_scale.
    max_gradient_norm: global norm to which the unscaled gradients are clipped.

    The other arguments are constants of the rule. Those that are None have the default of the later
    PyTorch releases for the run's format, or with "tf_dynamic" TensorFlow's.

    Raises: UsageError, with the user's line, for a value out of range
    """

    dialect: Dialect = "pytorch"

    def __init__(
        self,
        loss_scale: float | Literal["dynamic", "tf_dynamic"] | None = None,
        initial_loss_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        max_gradient_norm: float | None = None,
        overflow_tolerance: float | None = None,
        init_scale: float | None = None,
    ) -> None:
        self._factor = 1.0 if loss_scale is None else loss_scale
        options = {
            "initial": init_scale if initial_loss_scale is None else initial_loss_scale,
            "steps_per_increase": steps_per_increase,
            "minimum": min_loss_scale,
            "maximum": max_loss_scale,
            "overflow_tolerance": overflow_tolerance,
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        self.max_gradient_norm = max_gradient_norm or None
        self._loaded: ScaleState | None = None
        self._run: ScaledRun | None = None
        self._awaits_update = False
        if self._factor not in _DYNAMIC and not _is_positive(self._factor):
            raise UsageError(
                f"{user_line()}: GradScaler: loss_scale must be dynamic, tf_dynamic or a number "
                f"> 0, got {loss_scale!r}"
            )
        if self.max_gradient_norm is not None and self.max_gradient_norm < 0:
            raise UsageError(
                f"{user_line()}: GradScaler: max_gradient_norm must be >= 0, got "
                f"{max_gradient_norm}"
            )
        self.scaling()

    def scaling(self, half: HalfFormat | None = None) -> LossScaling | None:
        """Return the rule for a 16-bit format; None if the loss is not scaled.

        Raises: UsageError for a constant out of range
        """
        if not isinstance(self._factor, str):
            factor = float(self._factor)
            return None if factor == 1 else LossScaling(factor, is_dynamic=False)
        rule = dynamic("tensorflow" if self._factor == "tf_dynamic" else self.dialect, half)
        rule = msgspec.structs.replace(rule, **self._options)
        if (why := invalid_constant(rule)) is not None:
            raise UsageError(f"{user_line()}: GradScaler: {why}")
        return msgspec.structs.replace(rule, initial=min(rule.maximum, rule.initial))

    def first(self, half: HalfFormat | None = None) -> ScaleState:
        """Return the initial state of a run."""
        scaling = self.scaling(half)
        return self._loaded or (ScaleState(1.0) if scaling is None else scaling.first)

    def applied_by(self, run: ScaledRun) -> None:
        """Attach the run that applies the rule, whose store has the state."""
        self._run = run

    @property
    def is_applied(self) -> bool:
        """True once a run applies the rule."""
        return self._run is not None

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale the loss, as `scale` does."""
        found: torch.Tensor = self.scale(loss)
        return found

    def scale(self, outputs: Any) -> Any:
        """Mark the loss of this step as scaled, and return it."""
        self._awaits_update = False  # for a loop without `update`
        if active:
            active[-1].scale_loss(self)
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the optimizer's gradients are already unscaled."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's `step`; the run skips the update if a gradient is not finite.

        The scale is that of the step until `update` is called.
        """
        found = optimizer.step(*args, **kwargs)
        self._awaits_update = True
        return found

    def update(self, new_scale: float | None = None) -> None:
        """Leave the scale to the run's rule.

        Raises: UsageError if the loop sets a scale
        """
        if new_scale is not None:
            raise UsageError(
                f"{user_line()}: GradScaler.update() takes no scale: set loss_scale of the "
                "GradScaler"
            )
        self._awaits_update = False

    @property
    def state(self) -> ScaleState:
        """The scale and its counters after the last `update` of the loop."""
        before_last_step = self._awaits_update
        found = (
            None if self._run is None else self._run.scale_state(before_last_step=before_last_step)
        )
        return self.first() if found is None else found

    def get_scale(self) -> float:
        """Return the scale after the last `update`, after running all steps so far."""
        return self.state.scale

    def is_enabled(self) -> bool:
        """True if it scales the loss in mixed precision."""
        return self.scaling() is not None

    def state_dict(self) -> dict[str, float]:
        """Return the scale and its counters, by their names in checkpoints."""
        return dict(zip(SCALE_KEYS, self.state, strict=False))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the scale and its counters before the training begins.

        Raises: UsageError for a training that has begun, or other names
        """
        if missing := [name for name in SCALE_KEYS if name not in state]:
            raise UsageError(f"{user_line()}: the state of a GradScaler lacks {missing[0]}")
        self.begin_at(ScaleState(*(float(state[name]) for name in SCALE_KEYS)))

    def begin_at(self, state: ScaleState) -> Self:
        """Set the initial state. Raises: UsageError for a training that has begun"""
        self.require_unapplied()
        self._loaded = state
        return self

    def require_unapplied(self) -> None:
        """Raises: UsageError for a training that has begun"""
        if self._run is not None:
            raise UsageError(
                f"{user_line()}: the state of a GradScaler is loaded after the first step: load it "
                "before the Session's block"
            )


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < inf


def optimizer_step(
    loss: torch.Tensor,
    optimizer: Any,
    grad_scaler: GradScaler | None = None,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Run the backward pass of a loss and the optimizer's step, with scaling and clipping.

    Raises: ValueError for both limits, or a negative one
    """
    limits = {"max_gradient_norm": max_gradient_norm, "max_gradient_value": max_gradient_value}
    for name, limit in limits.items():
        if limit is not None and limit < 0:
            raise ValueError(f"{name} must be >= 0, got {limit}")
    if max_gradient_norm and max_gradient_value:
        raise ValueError(
            f"gradients are clipped by norm or by value: got max_gradient_norm {max_gradient_norm} "
            f"and max_gradient_value {max_gradient_value}: give one"
        )
    optimizer.zero_grad()
    (loss if grad_scaler is None else grad_scaler.scale(loss)).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if max_gradient_norm:
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    elif max_gradient_value:
        torch.nn.utils.clip_grad_value_(parameters, max_gradient_value)
    if grad_scaler is None:
        optimizer.step()
        return
    grad_scaler.step(optimizer)
    grad_scaler.update()
