"""Automatic mixed precision. Implemented in `csrun.pytorch.amp`."""

from csrun.pytorch.amp.grad_scaler import GradScaler, optimizer_step

__all__ = ["GradScaler", "optimizer_step"]
