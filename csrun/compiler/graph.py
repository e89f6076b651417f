"""The module as the matchers see it: which operators are left, and what each value is called."""

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.matrix import AddmmOp, MmOp
from csrun.cirh.ops.model import InputOp, LossOp, ParameterOp
from csrun.cirh.ops.shape import TransposeOp, ViewOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.array import Array
from csrun.compiler.phase import Phase

GRADIENT = "gradient/"
INPUT = "input/"


class Graph:
    """Operators in program order; matching a kernel takes its operators out.

    A value is named by what the program finds it under: an input of the batch, a parameter, a
    parameter's gradient in the store, or an arena buffer `<layer>/<operator>_<n>`.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.operations = list(module.ops)
        self.taken: set[Operation] = set()
        loss = (i for i, op in enumerate(self.operations) if isinstance(op, LossOp))
        self._after_loss = set(self.operations[next(loss, len(self.operations)) :])
        self._names: dict[SSAValue, str] = {}
        self._counts: dict[str, int] = {}

    def take(self, *operations: Operation) -> None:
        """These operators are covered by a kernel."""
        self.taken.update(operations)

    def array(self, value: SSAValue) -> Array:
        """The array that holds a value."""
        kind = type_of(value)
        return Array(self._name(value), shape_of(kind), dtype_of(kind))

    def users(self, value: SSAValue) -> list[Operation]:
        """Operators that read a value, in program order."""
        found = {use.operation for use in value.uses}
        return [operation for operation in self.operations if operation in found]

    def only_user(self, value: SSAValue) -> Operation | None:
        """The one operator that reads a value; None when there are more, or none."""
        users = self.users(value)
        return users[0] if len(users) == 1 else None

    def is_gradient(self, value: SSAValue) -> bool:
        """Whether a value is the gradient that a parameter's update takes."""
        return self._name(value).startswith(GRADIENT)

    def phase_of(self, operation: Operation) -> Phase:
        """Backward operators come after the loss."""
        return Phase.BACKWARD if operation in self._after_loss else Phase.FORWARD

    def layer_of(self, operation: Operation) -> str:
        """The layer that an operator belongs to."""
        scope = getattr(operation, "scope", None)
        return scope.data if scope is not None else "model"

    def _name(self, value: SSAValue) -> str:
        if value not in self._names:
            self._names[value] = self._find_name(value)
        return self._names[value]

    def _find_name(self, value: SSAValue) -> str:
        owner = value.owner
        assert isinstance(owner, Operation), "CIRH has no block arguments"
        if isinstance(owner, InputOp):
            return INPUT + owner.symbol.data
        if isinstance(owner, ParameterOp):
            return owner.symbol.data
        if isinstance(owner, ViewOp):
            return self._name(owner.operands[0])
        for op in self.users(value):
            if isinstance(op, UpdatingOp) and op.grad is value:
                assert isinstance(op.parameter.owner, ParameterOp), "only parameters are updated"
                return GRADIENT + op.parameter.owner.symbol.data
        return self._new_name(f"{self.layer_of(owner)}/{owner.name.partition('.')[2]}")

    def _new_name(self, stem: str) -> str:
        count = self._counts[stem] = self._counts.get(stem, -1) + 1
        return f"{stem}_{count}" if count else stem


def parameter_of(value: SSAValue) -> ParameterOp | None:
    """The parameter that a value is, if it is one."""
    return value.owner if isinstance(value.owner, ParameterOp) else None


def transposed(value: SSAValue) -> SSAValue | None:
    """What a value is the transpose of, if it is one."""
    return value.owner.operands[0] if isinstance(value.owner, TransposeOp) else None


def is_product(operation: Operation) -> bool:
    """Whether an operator is a matrix product, with or without a bias."""
    return isinstance(operation, MmOp | AddmmOp)
