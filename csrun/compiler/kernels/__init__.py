"""The kernel library: a file a family, each with what it matches in CIRH and the text it emits."""

from csrun.compiler.kernels import (
    argmax,
    dropout,
    fc,
    loss,
    softmax_cross_entropy,
)
from csrun.compiler.kernels.base import Kernel, Matcher, Phase

MATCHERS: dict[str, Matcher] = {
    **loss.MATCHERS,
    **fc.MATCHERS,
    **softmax_cross_entropy.MATCHERS,
    **argmax.MATCHERS,
    **dropout.MATCHERS,
}

__all__ = ["MATCHERS", "Kernel", "Matcher", "Phase"]
