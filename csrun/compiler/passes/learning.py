"""The learning algorithm: from a gradient to an update."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.algorithms import Algorithm
from csrun.cirh.ops.learning import UPDATES, ApplyGradientOp
from csrun.cirh.ops.model import ParameterOp
from csrun.compiler.passes.gradient import joint_options_of
from csrun.compiler.passes.rewrite import Pass, PassResult


@dataclass(frozen=True)
class LearningAlgorithm(Pass):
    """Before: `apply_gradient` operators. After: the update operators of their algorithms."""

    name: ClassVar[str] = "learning"

    def apply(self, module: ModuleOp) -> PassResult:
        """Replace each, and count them."""
        found = [op for op in module.ops if isinstance(op, ApplyGradientOp)]
        for operation in found:
            Rewriter.insert_op(_update(operation), InsertPoint.before(operation))
            Rewriter.erase_op(operation)
        return PassResult(bool(found), (f"{len(found)} parameters are updated",))


def _update(operation: ApplyGradientOp) -> Operation:
    """Return the update operator of one parameter, with its exclusions applied."""
    algorithm, parameter = operation.algorithm, operation.parameter.owner
    assert isinstance(algorithm, Algorithm), "verified by minimize"
    assert isinstance(parameter, ParameterOp), "only parameters have apply_gradient"
    kind = UPDATES[type(algorithm)]
    own = algorithm.for_parameter(parameter.symbol.data)
    operands = (operation.parameter, operation.grad)
    options = joint_options_of(operation)
    if operation.earlier_updates is not None:
        options["earlier_updates"] = operation.earlier_updates
    return kind.of(operands, scope=operation.where, algorithm=own, **options)
