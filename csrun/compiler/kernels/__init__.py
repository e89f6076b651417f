"""Kernel library: one file per family, each with its CIRH matchers and emitted text."""

from csrun.base.families import families_of
from csrun.compiler.graph.kernel import Kernel, Matcher, Phase

_FAMILIES = families_of("csrun.compiler.kernels", "MATCHERS")
MATCHERS: dict[str, Matcher] = {
    name: matcher for family in _FAMILIES for name, matcher in family.MATCHERS.items()
}

__all__ = ["MATCHERS", "Kernel", "Matcher", "Phase"]
