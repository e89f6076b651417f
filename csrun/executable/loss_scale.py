"""Dynamic loss scaling: a factor of the loss that keeps small gradients from underflow in 16 bits.

A step whose gradients are not finite is skipped. The scale is halved if too many steps are skipped,
and doubled after a number of steps. The dialects are one rule with different constants.

Source: the Cerebras Model Zoo, releases 1.x (TensorFlow) and later (PyTorch); torch.amp.GradScaler
"""

from collections.abc import Mapping
from math import inf
from typing import Literal, NamedTuple

import msgspec

from csrun.base.half_formats import FLOAT16, HalfFormat

LEAST_MINIMUM = 2.0**-14
MOST_MAXIMUM = 3.4028234663852886e38  # largest float32
FACTOR = 2.0
EXHAUSTED = (
    "Minimum loss scale threshold was reached but gradient norms are still encountering NaN or "
    "inf values"
)
CB16_UNSCALED = "CB16 without dynamic loss scaling: later versions of the original require"
Dialect = Literal["tensorflow", "pytorch", "torch.amp"]


class ScaleState(NamedTuple):
    """Loss scale after a step, with the steps and overflows counted since its last change.

    skipped: steps that were skipped, since the run began.
    """

    scale: float
    steps: float = 0.0
    overflows: float = 0.0
    skipped: float = 0.0


class LossScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of the rule, stored in the plan.

    is_dynamic: False: the scale is constant.
    exceeds: the scale is doubled after more than `steps_per_increase` steps, instead of exactly as
        many.
    """

    initial: float = 2.0**15
    steps_per_increase: int = 2000
    minimum: float = LEAST_MINIMUM
    maximum: float = 2.0**15
    overflow_tolerance: float = 0.05
    exceeds: bool = False
    is_dynamic: bool = True

    @property
    def first(self) -> ScaleState:
        """State before the first step."""
        return ScaleState(self.initial)

    def after(self, before: ScaleState, is_finite: bool) -> ScaleState:
        """Return the state after a step with finite or non-finite gradients: count, halve, double,
        clamp.
        """
        skipped = before.skipped + (not is_finite)
        if not self.is_dynamic:
            return before._replace(skipped=skipped)
        scale, steps, overflows = before.scale, before.steps + 1, before.overflows + (not is_finite)
        if overflows / steps > self.overflow_tolerance:
            scale, steps, overflows = scale / FACTOR, 0.0, 0.0
        if steps > self.steps_per_increase - (not self.exceeds):
            scale, steps, overflows = scale * FACTOR, 0.0, 0.0
        return ScaleState(min(max(scale, self.minimum), self.maximum), steps, overflows, skipped)


#: The rule of each dialect, for float16.
DIALECTS: Mapping[Dialect, LossScaling] = {
    "tensorflow": LossScaling(),
    "pytorch": LossScaling(overflow_tolerance=0.0, exceeds=True),
    "torch.amp": LossScaling(initial=2.0**16, maximum=2.0**127, overflow_tolerance=0.0),
}


def dynamic(dialect: Dialect, half: HalfFormat | None = None) -> LossScaling:
    """Return the rule of a dialect, with its constants for a 16-bit format."""
    rule = DIALECTS[dialect]
    if dialect == "pytorch" and half is not None and half.largest > FLOAT16.largest:
        return msgspec.structs.replace(rule, initial=2.0**31, maximum=2.0**31)
    return rule


def invalid_constant(scaling: LossScaling) -> str | None:
    """Return which constant is out of range, in the words of the original; None if all are
    valid.
    """
    if scaling.minimum < LEAST_MINIMUM:
        return f"min_loss_scale too small: must be at least {LEAST_MINIMUM}, got {scaling.minimum}"
    if scaling.maximum > MOST_MAXIMUM:
        return f"max_loss_scale must be at most {MOST_MAXIMUM}, got {scaling.maximum}"
    if scaling.overflow_tolerance < 0:
        return f"overflow_tolerance must be >= 0, got {scaling.overflow_tolerance}"
    if scaling.steps_per_increase < 1:
        return f"steps_per_increase must be >= 1, got {scaling.steps_per_increase}"
    if not 0 < scaling.initial < inf:
        return f"initial_loss_scale must be > 0 and finite, got {scaling.initial}"
    if scaling.maximum < scaling.minimum:
        return f"max_loss_scale must be >= min_loss_scale {scaling.minimum}, got {scaling.maximum}"
    return None
