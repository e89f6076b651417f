"""Learning rate schedules. Implemented in `csrun.pytorch.framework.schedules`."""

from csrun.pytorch.framework.schedules import (
    Constant,
    CosineAnnealing,
    CosineDecay,
    Exponential,
    InverseExponentialTimeDecay,
    Lambda,
    MultiStep,
    Polynomial,
    Step,
)

__all__ = [
    "Constant",
    "CosineAnnealing",
    "CosineDecay",
    "Exponential",
    "InverseExponentialTimeDecay",
    "Lambda",
    "MultiStep",
    "Polynomial",
    "Step",
]
