"""Loss scaling of the script, from the keys of its params file, with the scale in its
checkpoints.
"""

from typing import Any, Literal

from csrun.pytorch.amp.grad_scaler import GradScaler
from csrun.pytorch.framework.script import script

enabled = False
opt_level: str | None = None

_made: list["ScriptScaler"] = []  # of the script; the last one is used


class ScriptScaler(GradScaler):
    """Scaler of a script's loss. mixed_precision: otherwise everything is float32, without scaling.

    The other arguments are those of the script's params file. The script's own clipper clips, with
    the same limit.
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic", "tf_dynamic"] | None = None,
        initial_loss_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        max_gradient_norm: float | None = None,
        mixed_precision: bool = False,
    ) -> None:
        limits = initial_loss_scale, steps_per_increase, min_loss_scale, max_loss_scale
        super().__init__(loss_scale, *limits)
        if mixed_precision:
            script.mix_precision()
        _made[:] = [self]


def get_init_params() -> dict[str, Any]:
    """Return an empty mapping: the scaler only scales, and the optimizer's clipper clips."""
    return {}


def state_dict() -> dict[str, float]:
    """Return the scale and its counters; empty without scaling."""
    return _made[-1].state_dict() if _made else {}


def load_state_dict(state: dict[str, float]) -> None:
    """Load the scale and its counters from a checkpoint, before the first step."""
    if _made and state:
        _made[-1].load_state_dict(state)
