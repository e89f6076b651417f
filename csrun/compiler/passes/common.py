"""Common subexpressions."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from csrun.cirh.ops.learning import UpdatingOp
from csrun.compiler.passes.rewrite import Done, Pass
from csrun.compiler.passes.rules import PURE, replace_by_value

Key = tuple[type[Operation], tuple[SSAValue, ...], frozenset[tuple[str, Attribute]], Attribute]


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Before: any valid module.

    After: one that computes the same, where no two operators do the same with the same operands.
    Parameters' gradients stay apart: each has a place of its own in the store.
    Source: local value numbering, Cooper and Torczon 2012, section 8.4.1; a module is one block
    """

    name: ClassVar[str] = "common"

    def apply(self, module: ModuleOp) -> Done:
        """Let readers of a repeated value read its first computation, and count the repetitions."""
        known: dict[Key, SSAValue] = {}
        count = 0
        for op in list(module.ops):
            if not isinstance(op, PURE) or _is_gradient(op):
                continue
            first = known.setdefault(_key(op), op.results[0])
            if first is not op.results[0]:
                replace_by_value(op, first)
                count += 1
        return Done(count > 0, (f"repetitions: {count}",))


def _key(op: Operation) -> Key:
    """What an operator computes; the scope says only where."""
    properties = frozenset((n, value) for n, value in op.properties.items() if n != "scope")
    return type(op), tuple(op.operands), properties, op.results[0].type


def _is_gradient(op: Operation) -> bool:
    return any(isinstance(use.operation, UpdatingOp) for use in op.results[0].uses)
