"""Initial values of parameters."""

from collections.abc import Callable, Sequence
from math import prod, sqrt

from csrun.cirh.ops.model import Distribution, InitializerAttr
from csrun.nn.signature import checked

Initializer = Callable[[Sequence[int]], InitializerAttr]


def zeros(shape: Sequence[int]) -> InitializerAttr:
    """Zeros."""
    return InitializerAttr.of(Distribution.ZEROS)


def ones(shape: Sequence[int]) -> InitializerAttr:
    """Ones."""
    return InitializerAttr.of(Distribution.ONES)


@checked
def normal(standard_deviation: float = 0.02) -> Initializer:
    """Normal distribution around 0."""

    def initializer(shape: Sequence[int]) -> InitializerAttr:
        return InitializerAttr.of(Distribution.NORMAL, standard_deviation)

    initializer.__name__ = f"normal({standard_deviation})"  # in signatures
    return initializer


def glorot_uniform(shape: Sequence[int]) -> InitializerAttr:
    """Uniform distribution in ±sqrt(6 / (fan in + fan out)).

    Shapes: [fan in, fan out], or a convolution's [O, C, rows, columns], with fan in C * rows *
    columns and fan out O * rows * columns
    Source: Glorot and Bengio 2010, equation 16
    """
    is_of_windows = len(shape) == 4
    fans = (shape[0] + shape[1]) * prod(shape[2:]) if is_of_windows else shape[0] + shape[-1]
    return InitializerAttr.of(Distribution.UNIFORM, sqrt(6 / fans))
