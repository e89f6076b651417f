"""Modes of a run. Implemented in `csrun.pytorch.framework.modes`."""

from csrun.pytorch.framework.modes import (
    EVAL,
    INFERENCE,
    TRAIN,
    TRAIN_AND_EVAL,
    get_modes,
    is_valid,
)

__all__ = ["EVAL", "INFERENCE", "TRAIN", "TRAIN_AND_EVAL", "get_modes", "is_valid"]
