"""First values of parameters."""

from collections.abc import Callable, Sequence
from math import sqrt

from csrun.cirh.ops.model import Distribution, InitializerAttr

Initializer = Callable[[Sequence[int]], InitializerAttr]


def zeros(shape: Sequence[int]) -> InitializerAttr:
    """All 0."""
    return InitializerAttr.of(Distribution.ZEROS)


def ones(shape: Sequence[int]) -> InitializerAttr:
    """All 1."""
    return InitializerAttr.of(Distribution.ONES)


def normal(standard_deviation: float = 0.02) -> Initializer:
    """Normal around 0."""
    return lambda shape: InitializerAttr.of(Distribution.NORMAL, standard_deviation)


def glorot_uniform(shape: Sequence[int]) -> InitializerAttr:
    """Uniform in ±sqrt(6 / (fan in + fan out)).

    Shapes: [fan in, fan out]
    Source: Glorot and Bengio 2010, equation 16
    """
    return InitializerAttr.of(Distribution.UNIFORM, sqrt(6 / (shape[0] + shape[-1])))
