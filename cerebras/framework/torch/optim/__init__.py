"""Optimizers. Implemented in `csrun.pytorch.framework.wrapped_optimizer`."""

from cerebras.framework.torch.optim import lr_scheduler
from csrun.pytorch.framework.wrapped_optimizer import Optimizer

__all__ = ["Optimizer", "lr_scheduler"]
