"""Execution modes of a run: enums that all packages share."""

from enum import StrEnum


class ExecutionMode(StrEnum):
    """Execution mode of a CS system: all layers at once, or one after the other."""

    PIPELINED = "PIPELINED"
    WEIGHT_STREAMING = "WEIGHT_STREAMING"


class RunMode(StrEnum):
    """Kind of a program."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


class Mode(StrEnum):
    """Mode of a run.py."""

    TRAIN = "train"
    EVAL = "eval"
    EVAL_ALL = "eval_all"
    TRAIN_AND_EVAL = "train_and_eval"
    PREDICT = "predict"
    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


GRACE_S = 30.0  # from the word to end to the kill, where a site says nothing else
BURST_S = 0.2  # in which a signal that comes again is the same: `timeout` signals child and group
