"""Loss scaling in float32: no scale, and the counters that a checkpoint has."""

import logging
from typing import Any

import torch

log = logging.getLogger("csrun")

enabled = False
opt_level: str | None = None


class _Scale:
    """The script's loss scale, as its checkpoints have it."""

    def __init__(self) -> None:
        self.state: dict[str, float] = {}


_scale = _Scale()


class GradScaler:
    """Scale of the loss, which is not applied: a power of two changes no bit in float32.

    The arguments are those of the script's params file.
    """

    def __init__(
        self,
        loss_scale: Any = None,
        initial_loss_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        max_gradient_norm: float | None = None,
        mixed_precision: bool = False,
    ) -> None:
        is_number = isinstance(loss_scale, int | float)
        first = float(loss_scale) if is_number else float(initial_loss_scale or 2.0**15)
        counts = {"steps_since_rescale": 0, "overflows_since_rescale": 0}
        _scale.state = {"loss_scale": first, **counts}
        if mixed_precision:
            log.info("mixed_precision: arithmetic is float32, and the loss is not scaled")

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


def get_init_params() -> dict[str, Any]:
    """Return what the scaler does besides scaling: nothing, the optimizer's clipper clips."""
    return {}


def state_dict() -> dict[str, float]:
    """Return the scale and its counters."""
    return dict(_scale.state)


def load_state_dict(state: dict[str, float]) -> None:
    """Take the scale and its counters from a checkpoint."""
    _scale.state.update(state)
