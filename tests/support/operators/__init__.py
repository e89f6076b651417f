"""One case an operator: how to write it in CIRH, the same in PyTorch, and operands to try it on."""

from collections.abc import Sequence

from support.operators import elementwise, images, networks
from support.operators.cases import Case, normal
from support.operators.elementwise import OTHERS, TIES, WITH_ZERO, ZEROS

__all__ = ["FORWARD", "OTHERS", "TIES", "WITHOUT_GRADIENT", "WITH_ZERO", "ZEROS", "normal"]

FORWARD: Sequence[Case] = (*elementwise.FORWARD, *networks.FORWARD, *images.FORWARD)
WITHOUT_GRADIENT: Sequence[Case] = (
    *elementwise.WITHOUT_GRADIENT,
    *networks.WITHOUT_GRADIENT,
    *images.WITHOUT_GRADIENT,
)
