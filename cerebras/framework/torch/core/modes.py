"""Modes of a run. They live in `csrun.pytorch.framework.modes`."""

from csrun.pytorch.framework.modes import (
    EVAL,
    INFERENCE,
    TRAIN,
    TRAIN_AND_EVAL,
    get_modes,
    is_valid,
)

__all__ = ["EVAL", "INFERENCE", "TRAIN", "TRAIN_AND_EVAL", "get_modes", "is_valid"]
