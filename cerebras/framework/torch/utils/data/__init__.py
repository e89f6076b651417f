"""Loaders of scripts."""

from cerebras.framework.torch.utils.data import dataloader

__all__ = ["dataloader"]
