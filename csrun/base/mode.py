"""Enums of execution modes and run modes, shared by all packages."""

from enum import StrEnum


class ExecutionMode(StrEnum):
    """Execution mode of a CS system: all layers are resident, or weights are streamed layer by
    layer.
    """

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


GRACE_S = 30.0  # from the signal to end until the kill, unless the site sets it
# `timeout` signals both the child and its group: a repeated signal within this time counts once
BURST_S = 0.2
