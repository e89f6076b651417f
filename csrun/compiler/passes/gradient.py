"""Reverse-mode differentiation."""

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward
from csrun.cirh.builder import Builder
from csrun.cirh.ops.arithmetic import AddOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.learning import ApplyGradientOp, Clipping, LossScaleOp, MinimizeOp
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.types import is_float, type_of
from csrun.compiler.errors import CompileError, refused
from csrun.compiler.passes.rewrite import Pass, PassResult


@dataclass(frozen=True)
class GradientPass(Pass):
    """Before: forward operators and at most one `minimize`.

    After: no `minimize`; the backward operators in reverse order, each in the scope and with the
    location of the operator that it differentiates, then one `apply_gradient` for each parameter
    that the loss depends on.
    Source: reverse accumulation, Griewank and Walther 2008, section 3.2
    """

    name: ClassVar[str] = "gradient"

    def apply(self, module: ModuleOp) -> PassResult:
        """Differentiate the loss of each `minimize`, and count the parameters that it depends
        on.
        """
        lines = []
        for op in [op for op in module.ops if isinstance(op, MinimizeOp)]:
            count = _Differentiation(module, op).run()
            Rewriter.erase_op(op)
            lines.append(f"{count} parameters have a gradient")
        return PassResult(bool(lines), tuple(lines))


class _Differentiation:
    def __init__(self, module: ModuleOp, minimize: MinimizeOp) -> None:
        self._minimize = minimize
        self._forward = list(module.ops)
        self._builder = Builder(InsertPoint.before(minimize))
        self._active = _depends_on_parameters(self._forward)
        self._grads: dict[SSAValue, SSAValue] = {}

    def run(self) -> int:
        loss = self._minimize.loss
        if loss not in self._active:
            raise CompileError("the loss depends on no parameter: nothing to train")
        # d loss / d loss
        if self._minimize.loss_scaling is None:
            self._grads[loss] = self._builder.full(1.0, type_of(loss))
        else:
            self._grads[loss] = self._builder.leaf(LossScaleOp, type_of(loss))
        for op in reversed(self._forward):
            if op.operands and any(result in self._grads for result in op.results):
                self._backward(op)
        reached = [op for op in self._parameters() if op.out in self._grads]
        for op in reached:
            self._apply(op)
        return len(reached)

    def _parameters(self) -> list[ParameterOp]:
        return [op for op in self._forward if isinstance(op, ParameterOp)]

    def _backward(self, op: Operation) -> None:
        assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
        if not op.has_gradient() or op.results[0] not in self._grads:
            raise refused(op, f"layer {op.where}: {op.name} has no gradient")
        if any(result in self._grads for result in op.results[1:]):
            raise refused(op, f"layer {op.where}: the saved results of {op.name} have no gradient")
        wanted = tuple(o in self._active for o in op.operands)
        self._builder.locate = lambda: op.location
        with self._builder.in_scope(op.scope.data if op.scope else ""):
            try:
                grads = op.gradients(
                    Backward(op, self._grads[op.results[0]], wanted, self._builder)
                )
            except VerifyException as error:
                raise refused(op, f"layer {op.where}: {op.name}: {error}") from error
            for operand, grad in zip(op.operands, grads, strict=True):
                if grad is not None and operand in self._active:
                    self._accumulate(operand, grad)

    def _accumulate(self, value: SSAValue, grad: SSAValue) -> None:
        known = self._grads.get(value)
        self._grads[value] = grad if known is None else self._builder.emit(AddOp, known, grad)

    def _apply(self, op: ParameterOp) -> None:
        grad = self._grads[op.out]
        grad.name_hint = f"{op.out.name_hint or 'parameter'}_grad"
        with self._builder.in_scope(op.where):
            algorithm, options = self._minimize.algorithm, joint_options_of(self._minimize)
            self._builder.effect(ApplyGradientOp, op.out, grad, algorithm=algorithm, **options)


def joint_options_of(op: MinimizeOp | ApplyGradientOp) -> dict[str, Attribute]:
    """Return options of a learning algorithm that concern all gradients jointly."""
    names = (*Clipping.of(op).options(), "loss_scaling")
    return {name: op.properties[name] for name in names if name in op.properties}


def _depends_on_parameters(ops: list[Operation]) -> set[SSAValue]:
    active: set[SSAValue] = set()
    for op in ops:
        reached = isinstance(op, ParameterOp) or any(o in active for o in op.operands)
        active.update(r for r in op.results if reached and is_float(type_of(r)))
    return active
