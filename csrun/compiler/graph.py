"""The module as the matchers see it: which operators are left, and where each value is."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddmmOp, BinaryOp, MatmulOp, MmOp
from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.base import BackwardOp, UnaryOp
from csrun.cirh.ops.batch import LabelCountOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import InputOp, LeafOp, LossOp, ParameterOp
from csrun.cirh.ops.parts import CatOp
from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.cirh.ops.shape import VIEWS, CloneOp, PermuteOp, TransposeOp, ViewOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.accumulate import Sum, sum_at
from csrun.compiler.array import Array
from csrun.compiler.labels import label_ranges, place_of_count
from csrun.compiler.views import base_of, numbers_of, places_of, undone, view_of, written_by

#: The sum of the loss over the valid rows of the batch, which the runtime reads.
LOSS = Array("loss", (1,), "float64")


class Phase(StrEnum):
    """In which of a program's functions a kernel's text stands."""

    FORWARD = "forward"
    BACKWARD = "backward"


GRADIENT = "gradient/"
INPUT = "input/"


class Graph:
    """Operators in program order; matching a kernel takes its operators out.

    A value is a view of what the program finds under a name: an input of the batch, a parameter, a
    parameter's gradient in the store, or an arena buffer `<layer>/<operator>_<n>`.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.operations = list(module.ops)
        self._places = {operation: place for place, operation in enumerate(self.operations)}
        self.taken: dict[Operation, int] = {}
        self.label_ranges = label_ranges(self.operations)
        self._root = 0
        self._numbers = numbers_of(self.operations, self.label_ranges)
        loss = (i for i, op in enumerate(self.operations) if isinstance(op, LossOp))
        self._after_loss = set(self.operations[next(loss, len(self.operations)) :])
        self._arrays: dict[SSAValue, Array] = {}
        self._trained: dict[SSAValue, ParameterOp] = {}
        self._counts: dict[str, int] = {}
        for op in self.operations:
            if isinstance(op, UpdatingOp):
                self._place_gradient(op)

    def start(self, operation: Operation) -> None:
        """A kernel is looked for from this operator on; it would run where this one stands."""
        self._root = self.place_of(operation)

    def take(self, *operations: Operation) -> None:
        """These operators are covered by a kernel."""
        self.taken.update(dict.fromkeys(operations, self._root))

    def place_of(self, operation: Operation) -> int:
        """Where an operator stands in the program."""
        return self._places[operation]

    def precedes(self, value: SSAValue, operation: Operation) -> bool:
        """Whether a value is computed before an operator stands."""
        owner = base_of(value).owner
        return isinstance(owner, Operation) and self._places[owner] < self._places[operation]

    def runs_at(self, operation: Operation) -> int:
        """Where the kernel runs that covers an operator; its own place when none does yet."""
        return self.taken.get(operation, self._places[operation])

    def array(self, value: SSAValue) -> Array:
        """Where a value is."""
        if value not in self._arrays:
            self._arrays[value] = self._find_array(value)
        return self._arrays[value]

    def named(self, values: Iterable[SSAValue]) -> frozenset[str]:
        """The names of those of the values that are arrays of the program, and no views."""
        arrays = (self._arrays.get(value) for value in values if base_of(value) is value)
        return frozenset(array.name for array in arrays if array is not None)

    def users(self, value: SSAValue) -> list[Operation]:
        """Operators that read a value, in program order."""
        return sorted({use.operation for use in value.uses}, key=self._places.__getitem__)

    def only_user(self, value: SSAValue) -> Operation | None:
        """The one operator that reads a value; None when there are more, or none."""
        users = self.users(value)
        return users[0] if len(users) == 1 else None

    def may_change(self, value: SSAValue) -> bool:
        """Whether the one reader of a value may do so in place.

        Inputs and weights are not the program's to change, numbers are text, and repeated elements
        are one in memory.
        """
        base = base_of(value)
        if isinstance(base.owner, LeafOp) or value in self._numbers or self.array(value).repeats:
            return False
        return len(list(self.readers(base))) == 1

    def readers(self, value: SSAValue) -> Iterator[Operation]:
        """Operators that read the memory of a value, under whatever view."""
        for op in self.users(value):
            if isinstance(op, VIEWS):
                yield from self.readers(op.out)
            else:
                yield op

    def trains(self, value: SSAValue) -> ParameterOp | None:
        """The parameter whose gradient is written as this value; None without one."""
        return self._trained.get(value)

    def number(self, value: SSAValue) -> str | None:
        """The text of a value that is one number, made of constants and the batch's counts."""
        return self._numbers.get(value)

    def is_number(self, operation: Operation) -> bool:
        """Whether an operator gives one number only, which its readers have as text."""
        return any(result in self._numbers for result in operation.results)

    def loss_count(self) -> int | None:
        """Which of the batch's counts the loss is a mean over; None when it is over samples.

        That of the labels it is made of, if these are of one kind.
        """
        pending: list[Operation] = [op for op in self.operations if isinstance(op, LossOp)]
        seen, places = set(pending), set()
        while pending:
            op = pending.pop()
            if isinstance(op, LabelCountOp):
                places.add(place_of_count(op, self.label_ranges))
            owners = {o.owner for o in op.operands if isinstance(o.owner, Operation)} - seen
            seen |= owners
            pending += owners
        return places.pop() if len(places) == 1 else None

    def phase_of(self, operation: Operation) -> Phase:
        """Backward operators come after the loss."""
        return Phase.BACKWARD if operation in self._after_loss else Phase.FORWARD

    def layer_of(self, operation: Operation) -> str:
        """The layer that an operator belongs to."""
        scope = getattr(operation, "scope", None)
        return scope.data if scope is not None else "model"

    def _find_array(self, value: SSAValue) -> Array:
        owner = value.owner
        assert isinstance(owner, Operation), "CIRH has no block arguments"
        if isinstance(owner, VIEWS):
            found = view_of(owner, self.array(owner.x))
            assert found is not None, f"{owner.name} of {owner.where}: a copy stands before it"
            return found
        kind = type_of(value)
        shape, dtype = shape_of(kind), dtype_of(kind)
        if isinstance(owner, InputOp):
            return Array(INPUT + owner.symbol.data, shape, dtype)
        if isinstance(owner, ParameterOp):
            return Array(owner.symbol.data, shape, dtype, is_weight=True)
        stem = f"{self.layer_of(owner)}/{owner.name.partition('.')[2]}"
        return self._copied_place(value) or Array(self._new_name(stem), shape, dtype)

    def _copied_place(self, value: SSAValue) -> Array | None:
        """Where the one copy of a value will be, if it can be written there: it is no copy then."""
        owner = value.owner
        if value in self._numbers or isinstance(owner, LeafOp | DropoutMaskOp):
            return None
        place = self._place_of_copy(value)
        if place is None or place.name.startswith(GRADIENT) or 0 in place.shape:
            return None
        return place if place.is_contiguous or _writes_strided(owner, place) else None

    def _place_of_copy(self, value: SSAValue) -> Array | None:
        user = self.only_user(value) if value.uses.get_length() == 1 else None
        match user:
            case CloneOp():
                return self.array(user.out)
            case CatOp():
                places = places_of(user, self.array(user.out))
                return places[list(user.tensors).index(value)]
            case ViewOp() | PermuteOp() | TransposeOp():
                place = self._place_of_copy(user.out)
                return None if place is None else undone(user, place)
            case _:
                return None

    def _place_gradient(self, update: UpdatingOp) -> None:
        """Let what an update alone reads be written into the store, and added up there."""
        parameter, written = update.parameter.owner, written_by(update)
        assert isinstance(parameter, ParameterOp), "only parameters are updated"
        if written is None:
            return
        found = sum_at(place=written[1], value=written[0]) or Sum((written,))
        for value, place in found.terms:
            self._trained[value] = parameter
            self._arrays[value] = replace(place, name=GRADIENT + parameter.symbol.data)
        self.taken.update({op: self._places[op] for op in found.additions})

    def _new_name(self, stem: str) -> str:
        count = self._counts[stem] = self._counts.get(stem, -1) + 1
        return f"{stem}_{count}" if count else stem


def _writes_strided(owner: Operation | Block, place: Array) -> bool:
    """Whether the kernels of an operator write where elements do not lie one after the other.

    Elementwise ones do, those along an axis do not.
    """
    if isinstance(owner, CatOp):
        return True
    if isinstance(owner, Block) or len(place.shape) < 2:
        return False
    if isinstance(owner, MmOp | AddmmOp | MatmulOp | AttentionOp | AttentionBackwardOp):
        return place.is_matrix
    is_elementwise = isinstance(owner, BinaryOp | UnaryOp | BackwardOp | MaskedScaleOp)
    return is_elementwise and "dim" not in owner.properties and place.is_matrix


def parameter_of(value: SSAValue) -> ParameterOp | None:
    """The parameter that a value is, or is a view of."""
    owner = base_of(value).owner
    return owner if isinstance(owner, ParameterOp) else None


def transposed(value: SSAValue) -> SSAValue | None:
    """What a value is the transpose of, if it is one."""
    return value.owner.x if isinstance(value.owner, TransposeOp) else None
