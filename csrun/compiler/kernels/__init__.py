"""The kernel library: a file a family, each with what it matches in CIRH and the text it emits."""

from csrun.compiler.kernels import (
    attention,
    batch,
    dropout,
    embedding,
    fc,
    normalization,
    outputs,
    parts,
    products,
    rotary,
    softmax_cross_entropy,
)
from csrun.compiler.kernels.base import Kernel, Matcher, Phase

MATCHERS: dict[str, Matcher] = {
    **outputs.MATCHERS,
    **fc.MATCHERS,
    **products.MATCHERS,
    **parts.MATCHERS,
    **softmax_cross_entropy.MATCHERS,
    **dropout.MATCHERS,
    **normalization.MATCHERS,
    **embedding.MATCHERS,
    **attention.MATCHERS,
    **rotary.MATCHERS,
    **batch.MATCHERS,
}

__all__ = ["MATCHERS", "Kernel", "Matcher", "Phase"]
