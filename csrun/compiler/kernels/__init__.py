"""The kernel library: a file a family, each with what it matches in CIRH and the text it emits."""

from csrun.compiler.kernels import (
    attention,
    batch,
    cross_entropy,
    dropout,
    embedding,
    fc,
    normalization,
    outputs,
    parts,
    products,
    rotary,
)
from csrun.compiler.kernels.base import Kernel, Matcher, Phase

MATCHERS: dict[str, Matcher] = {
    **outputs.MATCHERS,
    **fc.MATCHERS,
    **products.MATCHERS,
    **parts.MATCHERS,
    **cross_entropy.MATCHERS,
    **dropout.MATCHERS,
    **normalization.MATCHERS,
    **embedding.MATCHERS,
    **attention.MATCHERS,
    **rotary.MATCHERS,
    **batch.MATCHERS,
}

__all__ = ["MATCHERS", "Kernel", "Matcher", "Phase"]
