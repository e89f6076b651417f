"""Graph rewriting: tables of rules, applied until none matches."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from csrun.compiler.passes.dead_code import DEAD_CODE
from csrun.compiler.passes.rewrite_rules import (
    CANONICAL,
    FOLDING,
    FUSION,
    SPLITTING,
    Rule,
    Rules,
)


@dataclass(frozen=True)
class PassResult:
    """Result of a pass: whether the module changed, and lines for the log."""

    changed: bool
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pass(ABC):
    """Pass that changes a module in place. Its fields are its options.

    The docstring of a pass says what holds before and after it; `name` is the stage's, in the
    compile directory and in the log.
    """

    name: ClassVar[str]

    @abstractmethod
    def apply(self, module: ModuleOp) -> PassResult:
        """Run the pass, and return a description of the changes."""


NO_MATCH = "no match: "  # for the author of rules: in the log, not in the report
MAX_MATCHES_PER_OPERATOR = 100  # far above the need of terminating rules; a cycle reaches it fast

Index = dict[type[Operation], list[Rule]]


@dataclass(frozen=True)
class Rewrite(Pass):
    """Before: any valid module. After: an equivalent module in which no rule matches."""

    rules: Rules

    name: ClassVar[str] = "rewrite"

    def apply(self, module: ModuleOp) -> PassResult:
        """Apply the rules, and count the matches of each.

        Raises: RuntimeError if the rules do not terminate, which is a bug of the rules
        """
        index: Index = defaultdict(list)
        for rule in self.rules:
            for root in rule.roots:
                index[root].append(rule)
        counts: Counter[str] = Counter()
        limit = MAX_MATCHES_PER_OPERATOR * max(1, len(list(module.ops)))
        while _sweep(module, index, counts):
            if counts.total() > limit:
                raise RuntimeError(f"rewriting does not terminate; matches so far: {dict(counts)}")
        idle = [rule.name for rule in self.rules if rule.name not in counts]
        lines = [f"{name}: {count}" for name, count in counts.items()]
        lines += [f"{NO_MATCH}{', '.join(idle)}"] if idle else []
        return PassResult(bool(counts), tuple(lines))


@dataclass(frozen=True)
class Canonicalization(Rewrite):
    """After: no operator that does nothing or undoes another; outside of training no dropout, no
    assignment and no batch statistics.
    """

    rules: Rules = CANONICAL

    name: ClassVar[str] = "canonical"


@dataclass(frozen=True)
class ConstantFolding(Rewrite):
    """After: no arithmetic on constants only, and none that a constant makes a no-op."""

    rules: Rules = FOLDING

    name: ClassVar[str] = "folding"


@dataclass(frozen=True)
class Fusion(Rewrite):
    """Before: forward operators. After: a matrix product and the bias added to it are one
    operator.
    """

    rules: Rules = FUSION

    name: ClassVar[str] = "fusion"


@dataclass(frozen=True)
class Splitting(Rewrite):
    """After: a matrix product has no bias; the addition is fused with later elementwise operators.
    The backward pass of a gelu whose input has no other reader is a product by a slope computed in
    the forward pass.
    """

    rules: Rules = SPLITTING

    name: ClassVar[str] = "splitting"


@dataclass(frozen=True)
class DeadCodeElimination(Rewrite):
    """After: every value is read, or is an input or a parameter; none without elements is
    computed.
    """

    rules: Rules = DEAD_CODE

    name: ClassVar[str] = "dead"


def _sweep(module: ModuleOp, index: Index, counts: Counter[str]) -> bool:
    """Sweep over all operators once, last first, so that a dead chain is erased in one sweep."""
    changed = False
    for op in reversed(list(module.ops)):
        if op.parent is None:
            continue  # erased by a rule that matched later in the block
        for rule in index.get(type(op), ()):
            if rule.apply(op):
                counts[rule.name] += 1
                changed = True
                break
    return changed
