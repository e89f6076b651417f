"""The module as the matchers see it: which operators are left, and what each value is called."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import FullOp, InputOp, LossOp, ParameterOp, RowsOp
from csrun.cirh.ops.shape import TransposeOp, ViewOp
from csrun.cirh.types import dtype_of, shape_of, type_of


@dataclass(frozen=True)
class Array:
    """An array of the program. `name` is its place: a buffer, a parameter, a gradient, an input."""

    name: str
    shape: tuple[int, ...]
    dtype: str


#: The sum of the loss over the valid rows of the batch, which the runtime reads.
LOSS = Array("loss", (1,), "float64")


class Phase(StrEnum):
    """In which of a program's functions a kernel's text stands."""

    FORWARD = "forward"
    BACKWARD = "backward"


GRADIENT = "gradient/"
INPUT = "input/"
SIGNS: dict[type[Operation], str] = {AddOp: "+", SubOp: "-", MulOp: "*", DivOp: "/"}


class Graph:
    """Operators in program order; matching a kernel takes its operators out.

    A value is named by what the program finds it under: an input of the batch, a parameter, a
    parameter's gradient in the store, or an arena buffer `<layer>/<operator>_<n>`.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.operations = list(module.ops)
        self._places = {operation: place for place, operation in enumerate(self.operations)}
        self.taken: dict[Operation, int] = {}
        self._root = 0
        loss = (i for i, op in enumerate(self.operations) if isinstance(op, LossOp))
        self._after_loss = set(self.operations[next(loss, len(self.operations)) :])
        self._literals: dict[SSAValue, str] = {}
        for op in self.operations:
            if op.results and (text := self._find_literal(op)) is not None:
                self._literals[op.results[0]] = text
        self._names: dict[SSAValue, str] = {}
        self._counts: dict[str, int] = {}

    def start(self, operation: Operation) -> None:
        """A kernel is looked for from this operator on; it would run where this one stands."""
        self._root = self.place_of(operation)

    def take(self, *operations: Operation) -> None:
        """These operators are covered by a kernel."""
        self.taken.update(dict.fromkeys(operations, self._root))

    def place_of(self, operation: Operation) -> int:
        """Where an operator stands in the program."""
        return self._places[operation]

    def runs_at(self, operation: Operation) -> int:
        """Where the kernel runs that covers an operator; its own place when none does yet."""
        return self.taken.get(operation, self._places[operation])

    def array(self, value: SSAValue) -> Array:
        """The array that holds a value."""
        kind = type_of(value)
        return Array(self._name(value), shape_of(kind), dtype_of(kind))

    def named(self, values: Iterable[SSAValue]) -> frozenset[str]:
        """The names of those of the values that have one: they are arrays of the program."""
        return frozenset(self._names[value] for value in values if value in self._names)

    def users(self, value: SSAValue) -> list[Operation]:
        """Operators that read a value, in program order."""
        return sorted({use.operation for use in value.uses}, key=self._places.__getitem__)

    def only_user(self, value: SSAValue) -> Operation | None:
        """The one operator that reads a value; None when there are more, or none."""
        users = self.users(value)
        return users[0] if len(users) == 1 else None

    def is_read_once(self, value: SSAValue) -> bool:
        """Whether one operator reads the memory of a value, under whatever shape."""
        while isinstance(value.owner, ViewOp):
            value = value.owner.x
        return len(self._readers(value)) == 1

    def _readers(self, value: SSAValue) -> list[Operation]:
        readers = []
        for op in self.users(value):
            readers += self._readers(op.out) if isinstance(op, ViewOp) else [op]
        return readers

    def literal(self, value: SSAValue) -> str | None:
        """The text of a value that is one number, made of constants and the batch's rows."""
        return self._literals.get(value)

    def _find_literal(self, op: Operation) -> str | None:
        """The text of an operator's result; those before it in the program are known."""
        match op:
            case FullOp() as full:
                return _text(float(full.value.value.data))
            case RowsOp():
                return "step.rows"
            case NegOp() as negative:
                text = self.literal(negative.x)
                return None if text is None else f"(-{text})"
            case AddOp() | SubOp() | MulOp() | DivOp() as binary:
                left, right = self.literal(binary.lhs), self.literal(binary.rhs)
                if left is None or right is None:
                    return None
                return f"({left} {SIGNS[type(binary)]} {right})"
            case _:
                return None

    def is_gradient(self, value: SSAValue) -> bool:
        """Whether a value is the gradient that a parameter's update takes."""
        return self._name(value).startswith(GRADIENT)

    def trains(self, value: SSAValue) -> ParameterOp | None:
        """The parameter whose update takes a value as its gradient, if there is one."""
        for op in self.users(value):
            if isinstance(op, UpdatingOp) and op.grad is value:
                assert isinstance(op.parameter.owner, ParameterOp), "only parameters are updated"
                return op.parameter.owner
        return None

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
        if (parameter := self.trains(value)) is not None:
            return GRADIENT + parameter.symbol.data
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


def _text(number: float) -> str:
    """A Python expression of a number; infinity and NaN have no literal."""
    return repr(number) if isfinite(number) else f"float('{number!r}')"
