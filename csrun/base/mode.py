"""How a run computes: words that all rooms share."""

from enum import StrEnum


class ExecutionMode(StrEnum):
    """How a CS system runs a model: all layers at once, or one after the other."""

    PIPELINED = "PIPELINED"
    WEIGHT_STREAMING = "WEIGHT_STREAMING"


class RunMode(StrEnum):
    """What the program computes."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


class Mode(StrEnum):
    """What a run.py is to do."""

    TRAIN = "train"
    EVAL = "eval"
    EVAL_ALL = "eval_all"
    TRAIN_AND_EVAL = "train_and_eval"
    PREDICT = "predict"
    COMPILE_ONLY = "compile_only"
    VALIDATE_ONLY = "validate_only"


GRACE_S = 30.0  # from the word to end to the kill, where a site says nothing else
