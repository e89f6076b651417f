"""Optimizers that torch.optim lacks. They live in `csrun.pytorch.optimizers`."""

from csrun.pytorch.optimizers.lamb import Lamb

__all__ = ["Lamb"]
