"""The two execution modes of a CS system."""

from enum import StrEnum


class ExecutionMode(StrEnum):
    """How a CS system runs a model: all layers at once, or one after the other."""

    PIPELINED = "PIPELINED"
    WEIGHT_STREAMING = "WEIGHT_STREAMING"
