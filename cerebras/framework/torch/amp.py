"""Loss scaling. It lives in `csrun.pytorch.framework.grad_scaler`."""

from csrun.pytorch.framework.grad_scaler import (
    GradScaler,
    enabled,
    get_init_params,
    load_state_dict,
    opt_level,
    state_dict,
)

__all__ = [
    "GradScaler",
    "enabled",
    "get_init_params",
    "load_state_dict",
    "opt_level",
    "state_dict",
]
