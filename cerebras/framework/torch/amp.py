"""Loss scaling. Implemented in `csrun.pytorch.framework.script_scaler`."""

from csrun.pytorch.framework.script_scaler import ScriptScaler as GradScaler
from csrun.pytorch.framework.script_scaler import (
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
