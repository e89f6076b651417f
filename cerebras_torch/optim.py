"""Optimizers that torch.optim lacks. Implemented in `csrun.pytorch.optimizers`."""

from csrun.pytorch.optimizers.lamb import Lamb

__all__ = ["Lamb"]
