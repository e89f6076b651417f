"""Helpers of scripts."""

from cerebras.framework.torch.utils import data
from csrun.pytorch.framework.model_outputs import extract_loss

__all__ = ["data", "extract_loss"]
