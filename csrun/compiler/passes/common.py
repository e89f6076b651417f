"""Common subexpression elimination."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from csrun.cirh.ops.learning import UpdatingOp, is_of_update
from csrun.compiler.passes.rewrite import Pass, PassResult
from csrun.compiler.passes.rewrite_rules import PURE, replace_by_values

Key = tuple[
    type[Operation],
    tuple[SSAValue, ...],
    frozenset[tuple[str, Attribute]],
    tuple[Attribute, ...],
    bool,
]
_PURE = frozenset(PURE)  # isinstance would test each of its hundred classes


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Before: any valid module.

    After: an equivalent module in which no two operators compute the same from the same operands.
    Gradients of parameters stay separate, since each has its own place in the store.
    Source: local value numbering, Cooper and Torczon 2012, section 8.4.1; a module is one block
    """

    name: ClassVar[str] = "common"

    def apply(self, module: ModuleOp) -> PassResult:
        """Replace repeated values by their first computation, and count the repetitions."""
        known: dict[Key, Operation] = {}
        count = 0
        for op in list(module.ops):
            if type(op) not in _PURE or _is_gradient(op):
                continue
            first = known.setdefault(_key(op), op)
            if first is not op:
                replace_by_values(op, first.results)
                count += 1
        return PassResult(count > 0, (f"repetitions: {count}",))


def _key(op: Operation) -> Key:
    """Return the key of an operator's computation; of its scope only whether it is an update's."""
    properties = frozenset((n, value) for n, value in op.properties.items() if n != "scope")
    kinds = tuple(r.type for r in op.results)
    return type(op), tuple(op.operands), properties, kinds, is_of_update(op)


def _is_gradient(op: Operation) -> bool:
    return any(isinstance(use.operation, UpdatingOp) for r in op.results for use in r.uses)
