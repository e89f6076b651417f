"""The script's loader. Implemented in `csrun.pytorch.framework.loader`."""

from csrun.pytorch.framework.loader import DataLoader

__all__ = ["DataLoader"]
