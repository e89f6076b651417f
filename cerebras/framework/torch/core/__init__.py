"""The job as a script sees it: `cb_model`, `modes`, `name_scope`."""

from cerebras.framework.torch.core import cb_model, modes
from csrun.pytorch.framework.modes import name_scope

__all__ = ["cb_model", "modes", "name_scope"]
