"""Configuration of a run."""

from csrun.tensorflow import CSRunConfig

__all__ = ["CSRunConfig"]
