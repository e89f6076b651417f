"""The learning algorithm: from a gradient to an update."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.attributes import SgdAttr
from csrun.cirh.ops.learning import ApplyGradientOp, SgdOp
from csrun.compiler.passes.base import Pass


@dataclass(frozen=True)
class LearningAlgorithm(Pass):
    """Before: `apply_gradient` operators. After: the update operators of their algorithms."""

    name: ClassVar[str] = "learning"

    def apply(self, module: ModuleOp) -> list[str]:
        """Replace each, and count them."""
        found = [op for op in module.ops if isinstance(op, ApplyGradientOp)]
        for operation in found:
            Rewriter.insert_op(_update(operation), InsertPoint.before(operation))
            Rewriter.erase_op(operation)
        return [f"{len(found)} parameters are updated"]


def _update(operation: ApplyGradientOp) -> Operation:
    algorithm = operation.algorithm
    assert isinstance(algorithm, SgdAttr), "verified by minimize"
    return SgdOp.of(
        (operation.parameter, operation.grad),
        scope=operation.where,
        learning_rate=algorithm.learning_rate,
        momentum=algorithm.momentum,
    )
