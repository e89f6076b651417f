"""Options common to all optimizers: clipping, loss scaling, logged numbers."""

from math import inf
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from csrun.base.callers import CheckedStruct
from csrun.cirh.ops.learning import Clipping
from csrun.executable.loss_scale import LossScaling, dynamic, invalid_constant
from csrun.nn.errors import TraceError
from csrun.records.update_summaries import UpdateSummaries

Length = Annotated[float, Meta(gt=0)]
ScalingFactor = float | Literal["dynamic", "tf_dynamic"]
#: Constants of dynamic loss scaling by the original's keys of the optimizer section.
SCALING_OPTIONS = {
    "initial": "initial_loss_scale",
    "steps_per_increase": "steps_per_increase",
    "minimum": "min_loss_scale",
    "maximum": "max_loss_scale",
    "overflow_tolerance": "overflow_tolerance",
}


class OptimizerError(TraceError, ValueError):
    """An invalid optimizer option; a ValueError, so that msgspec adds its path in a params file."""


class Clipped(
    msgspec.Struct,
    metaclass=CheckedStruct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
):
    """Gradient clipping: gradients of global norm above `clip_norm` are scaled down to it.

    Source: Pascanu et al. 2013, algorithm 1, in the form of torch.nn.utils.clip_grad_norm_
    """

    clip_norm: Length | None = None


class Logged(Clipped, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers about the updates in the events of each log step, with the original's keys.

    log_summaries: the rate, and the norm of all gradients before clipping. The other options need
        it.
    log_grads: for the gradient of each kernel and bias the norm, and the shares of zeros and of
        numbers below the normal range.
    log_hists: also its log2 histogram.
    ws_summary: zeros of all gradients, and the norm of all weights.
    """

    log_summaries: bool = False
    log_grads: bool = False
    log_hists: bool = False
    ws_summary: bool = False

    def summaries(self) -> UpdateSummaries:
        """Numbers that are written.

        Raises: TypeError for a key that is not a boolean
        """
        flags = self.log_summaries, self.log_grads, self.log_hists, self.ws_summary
        if not all(isinstance(flag, bool) for flag in flags):
            raise TypeError(f"log_* and ws_summary must be true or false, got {flags}")
        return UpdateSummaries(*flags)


class Scaled(Logged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Loss scaling, for mixed precision; the keys and defaults are the original's.

    loss_scaling_factor: a number, 1.0 for none, or `dynamic` or `tf_dynamic`.
    loss_scale: another name of loss_scaling_factor.
    max_gradient_norm: another name of clip_norm; 0 for none.
    max_gradient_value: maximum magnitude of gradient values, an alternative to a norm; 0 for none.

    The other options belong to dynamic scaling; their defaults are those of the dialect.
    """

    loss_scaling_factor: ScalingFactor = 1.0
    loss_scale: ScalingFactor | None = None
    initial_loss_scale: Length | None = None
    steps_per_increase: Annotated[int, Meta(ge=1)] | None = None
    min_loss_scale: Length | None = None
    max_loss_scale: Length | None = None
    overflow_tolerance: float | None = None
    max_gradient_norm: float | None = None
    max_gradient_value: float | None = None

    def loss_scaling(self) -> LossScaling | None:
        """Rule of the loss scale; None for an unscaled loss.

        Raises: OptimizerError for options that contradict each other, or are out of range
        """
        factor = self.loss_scaling_factor if self.loss_scale is None else self.loss_scale
        if self.loss_scale is not None and self.loss_scaling_factor not in (1.0, factor):
            raise OptimizerError(
                f"loss_scale is {self.loss_scale} and loss_scaling_factor is "
                f"{self.loss_scaling_factor}: give one of them"
            )
        options = {
            name: getattr(self, key)
            for name, key in SCALING_OPTIONS.items()
            if getattr(self, key) is not None
        }
        found = msgspec.structs.replace(dynamic("tensorflow"), **options)
        if (why := invalid_constant(found)) is not None:
            raise OptimizerError(why)
        if not isinstance(factor, str):
            if not 0 < factor < inf:
                raise OptimizerError(f"loss_scaling_factor must be > 0 and finite, got {factor}")
            return None if factor == 1 else LossScaling(float(factor), is_dynamic=False)
        return found

    def clipping(self) -> Clipping:
        """The limits of the gradients.

        Raises: OptimizerError for two clippings, or a negative one
        """
        norm, value = self.max_gradient_norm, self.max_gradient_value
        if norm is not None and value is not None:
            raise OptimizerError(
                "gradients can be clipped by norm or by value: set max_gradient_norm or "
                "max_gradient_value, not both"
            )
        for key, number in (("max_gradient_norm", norm), ("max_gradient_value", value)):
            if number is not None and number < 0:
                raise OptimizerError(f"{key} must be >= 0, got {number}")
        if value and self.clip_norm is not None:
            raise OptimizerError(
                f"clip_norm is {self.clip_norm} and max_gradient_value is {value}: give one of them"
            )
        if norm and self.clip_norm is not None and norm != self.clip_norm:
            raise OptimizerError(
                f"clip_norm is {self.clip_norm} and max_gradient_norm is {norm}: give one of them"
            )
        longest = norm or self.clip_norm
        return Clipping(
            clip_norm=float(longest) if longest else None,
            clip_value=float(value) if value else None,
        )
