"""The kernel library: a file a family, each with what it matches in CIRH and the text it emits."""

from xdsl.ir import Operation

from csrun.base.families import families_of
from csrun.compiler.graph.kernel import Kernel, Matcher, Phase

_FAMILIES = families_of("csrun.compiler.kernels", "MATCHERS")
MATCHERS: dict[str, Matcher] = {
    name: matcher for family in _FAMILIES for name, matcher in family.MATCHERS.items()
}
#: Operators whose kernels take operands whose elements lie one after the other.
DENSE: tuple[type[Operation], ...] = tuple(
    op for family in families_of("csrun.compiler.kernels", "DENSE") for op in family.DENSE
)

__all__ = ["DENSE", "MATCHERS", "Kernel", "Matcher", "Phase"]
