"""The module during kernel matching: the operators without a kernel, and the location of each
value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue, Use

from csrun.cirh.ops.base import CirhOp, ElementwiseOp, ResultLayout
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import InputOp, LeafOp, LossOp, StoredOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.shape import VIEWS, CloneOp, PermuteOp, TransposeOp, ViewOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph.accumulate import Sum, sum_at
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.labels import label_ranges, place_of_count
from csrun.compiler.graph.view_ops import (
    base_of,
    numbers_of,
    places_of,
    undone,
    view_of,
    written_by,
)
from csrun.executable import GRADIENT, INPUT

#: Name of the sum of the loss over the valid rows of the batch, which the runtime reads.
LOSS = Array("loss", (1,), "float64")


class Phase(StrEnum):
    """Function of a program to which a kernel's text belongs."""

    FORWARD = "forward"
    BACKWARD = "backward"


#: Operands of an operator that its result may overwrite.
Changeable = Callable[[Operation], Sequence[SSAValue]]


class Graph:
    """Operators in program order; matching a kernel takes its operators out.

    A value is a view of a named array of the program: an input of the batch, a parameter, a
    parameter's gradient in the store, or an arena buffer `<layer>/<operator>_<n>`.
    """

    def __init__(self, module: ModuleOp, changeable: Changeable) -> None:
        self._changeable = changeable
        self.operations = list(module.ops)
        self._places = {operation: place for place, operation in enumerate(self.operations)}
        self.taken: dict[Operation, int] = {}
        self.label_ranges = label_ranges(self.operations)
        self._root = 0
        self._numbers = numbers_of(self.operations, self.label_ranges)
        loss = (i for i, op in enumerate(self.operations) if isinstance(op, LossOp))
        self._after_loss = set(self.operations[next(loss, len(self.operations)) :])
        self._arrays: dict[SSAValue, Array] = {}
        self._trained: dict[SSAValue, StoredOp] = {}
        self._counts: dict[str, int] = {}
        stored = (op.symbol.data for op in self.operations if isinstance(op, StoredOp))
        self._reserved = {name for weight in stored for name in _with_folders(weight)}
        self._word_readers: set[Operation] = set()
        for op in self.operations:
            if isinstance(op, UpdatingOp):
                self._place_gradient(op)

    def start(self, operation: Operation) -> None:
        """Start matching a kernel at this operator, at whose position the kernel would run."""
        self._root = self.place_of(operation)

    def take(self, *operations: Operation) -> None:
        """Mark operators as covered by a kernel."""
        self.taken.update(dict.fromkeys(operations, self._root))

    def read_as_words(self, reader: Operation, widening: Operation) -> None:
        """Note that a kernel reads the words under a widening, which is not needed if all readers
        do.
        """
        self._word_readers.add(reader)
        if self._word_readers.issuperset(self.readers(widening.results[0])):
            self.take(widening)

    def place_of(self, operation: Operation) -> int:
        """Return the position of an operator in the program."""
        return self._places[operation]

    def runs_at(self, operation: Operation) -> int:
        """Return the position of the kernel that covers an operator, or its own if none does
        yet.
        """
        return self.taken.get(operation, self._places[operation])

    def array(self, value: SSAValue) -> Array:
        """Return the array of a value."""
        chain = [value]  # iterative, since chains of values that overwrite each other may be long
        while chain[-1] not in self._arrays and (below := self._below(chain[-1])) is not None:
            chain.append(below)
        for each in reversed(chain):
            if each not in self._arrays:
                self._arrays[each] = self._find_array(each)
        return self._arrays[value]

    def known_array(self, value: SSAValue) -> Array | None:
        """Return the array of a value if a kernel has requested it."""
        return self._arrays.get(value)

    def placed(self, value: SSAValue) -> Array:
        """Return the layout of a value as far as it is known, without assigning a name."""
        if value in self._arrays:
            return self._arrays[value]
        if isinstance(value.owner, VIEWS):
            found = view_of(value.owner, self.placed(value.owner.x))
            assert found is not None, "a copy was inserted before it"
            return found
        kind = type_of(value)
        place = self._copied_place(value)
        return place or Array("", shape_of(kind), dtype_of(kind))

    def named(self, values: Iterable[SSAValue]) -> frozenset[str]:
        """Return the names of those values that are arrays of the program rather than views."""
        arrays = (self._arrays.get(value) for value in values if base_of(value) is value)
        return frozenset(array.name for array in arrays if array is not None)

    def users(self, value: SSAValue) -> list[Operation]:
        """Return the operators that read a value, in program order."""
        return sorted({use.operation for use in value.uses}, key=self._places.__getitem__)

    def only_user(self, value: SSAValue) -> Operation | None:
        """Return the only operator that reads a value; None if there are several, or none."""
        users = self.users(value)
        return users[0] if len(users) == 1 else None

    def readers(self, value: SSAValue) -> Iterator[Operation]:
        """Return the operators that read a value, also through views."""
        for op in self.users(value):
            if isinstance(op, VIEWS):
                yield from self.readers(op.out)
            else:
                yield op

    def trains(self, value: SSAValue) -> StoredOp | None:
        """Return the parameter whose gradient this value is; None if it is not one."""
        return self._trained.get(value)

    def number(self, value: SSAValue) -> str | None:
        """Return the text of a scalar computed from constants and the batch's counts."""
        return self._numbers.get(value)

    def is_number(self, operation: Operation) -> bool:
        """Return whether an operator only gives such a scalar, which its readers inline."""
        return any(result in self._numbers for result in operation.results)

    def loss_count(self) -> int | None:
        """Index of the batch count that the loss is a mean over; None for the number of samples.

        It is the count of its labels, if those are of one kind.
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
        """Return the phase of an operator; backward operators come after the loss."""
        return Phase.BACKWARD if operation in self._after_loss else Phase.FORWARD

    def layer_of(self, operation: Operation) -> str:
        """Return the layer that an operator belongs to."""
        scope = getattr(operation, "scope", None)
        return scope.data if scope is not None else "model"

    def _find_array(self, value: SSAValue) -> Array:
        owner = value.owner
        assert isinstance(owner, Operation), "CIRH has no block arguments"
        if isinstance(owner, VIEWS):
            found = view_of(owner, self.array(owner.x))
            assert found is not None, (
                f"{owner.name} of {owner.where}: a copy was inserted before it"
            )
            return found
        kind = type_of(value)
        shape, dtype = shape_of(kind), dtype_of(kind)
        if isinstance(owner, InputOp):
            return Array(INPUT + owner.symbol.data, shape, dtype)
        if isinstance(owner, StoredOp):
            return Array(owner.symbol.data, shape, dtype, is_weight=True)
        stem = f"{self.layer_of(owner)}/{owner.name.partition('.')[2]}"
        place = self._copied_place(value) or self._place_of_operand(owner)
        return place or Array(self.new_name(stem), shape, dtype)

    def _below(self, value: SSAValue) -> SSAValue | None:
        """Return the value that this one is a view of, or may overwrite."""
        owner = value.owner
        assert isinstance(owner, Operation), "CIRH has no block arguments"
        return owner.x if isinstance(owner, VIEWS) else self._changeable_operand(owner)

    def _place_of_operand(self, owner: Operation) -> Array | None:
        """Return the location of the operand that an elementwise result overwrites."""
        value = self._changeable_operand(owner)
        if value is None:
            return None
        array = self.array(value)
        # A gradient in the store belongs to MemoryX as soon as its visit is over.
        if array.name.startswith(GRADIENT) or not array.is_contiguous:
            return None
        return array if array.base.shape == self.array(base_of(value)).shape else None

    def _changeable_operand(self, owner: Operation) -> SSAValue | None:
        """Return an operand that nothing else reads.

        Inputs and weights must not be overwritten, and numbers are inlined text.
        """
        for value in self._changeable(owner):
            base = base_of(value)
            if value.type != owner.results[0].type or isinstance(base.owner, LeafOp):
                continue
            if value in self._numbers or not self._is_read_last_by(owner, value):
                continue
            if not any(base_of(o) is base for o in owner.operands if o is not value):
                return value
        return None

    def _is_read_last_by(self, owner: Operation, value: SSAValue) -> bool:
        """Return whether a value's memory has no other readers left when an operator writes.

        This includes readers that process it element by element in the same or an earlier loop:
        they have read a row before the operator writes it.
        """
        return all(
            reader is owner
            or (_reads_by_number(reader, value) and reader.results[0] in owner.operands)
            for reader in self._readers_there(base_of(value))
        )

    def _readers_there(self, base: SSAValue) -> list[Operation]:
        """Return the operators that read the memory of a base, including values that overwrite
        it.
        """
        found, copied = list(self.readers(base)), base.owner
        if isinstance(copied, CirhOp) and copied.COPIES:
            for operand in copied.operands:
                found += [r for r in self.readers(base_of(operand)) if r is not copied]
        return found

    def _copied_place(self, value: SSAValue) -> Array | None:
        """Return the location of the only copy of a value, if the value can be written there
        directly.
        """
        owner = value.owner
        if value in self._numbers or isinstance(owner, LeafOp | DropoutMaskOp):
            return None
        place = self._place_of_copy(value)
        if place is None or place.name.startswith(GRADIENT) or 0 in place.shape:
            return None
        return place if place.is_contiguous or _writes_strided(owner, place) else None

    def _place_of_copy(self, value: SSAValue) -> Array | None:
        user = _only_reader(value)
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
        """Place a value that only an update reads in the store, and accumulate it there."""
        parameter, written = update.parameter.owner, written_by(update)
        assert isinstance(parameter, StoredOp), "only parameters are updated"
        if written is None:
            return
        found = sum_at(place=written[1], value=written[0]) or Sum((written,))
        for value, place in found.terms:
            self._trained[value] = parameter
            self._arrays[value] = replace(place, name=GRADIENT + parameter.symbol.data)
        self.taken.update({op: self._places[op] for op in found.additions})

    def new_name(self, stem: str) -> str:
        """Return a name that no other array of the program has, and that no weight is below."""
        name = stem
        while name in self._reserved:
            count = self._counts[stem] = self._counts.get(stem, 0) + 1
            name = f"{stem}_{count}"
        self._reserved.add(name)
        return name


def _with_folders(name: str) -> Iterator[str]:
    """Yield a name and the folders that it is in."""
    parts = name.split("/")
    yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _only_reader(value: SSAValue) -> Operation | None:
    """Return the only use of a value, besides readers that accept any layout."""
    users = [use.operation for use in value.uses if not _reads_in_place(use)]
    return users[0] if len(users) == 1 else None


def _reads_in_place(use: Use) -> bool:
    op = use.operation
    return isinstance(op, CirhOp) and op.operand_name(use.index) in op.READS_IN_PLACE


def _reads_by_number(reader: Operation, value: SSAValue) -> bool:
    """Return whether a result is pointwise in a value: element i only depends on element i."""
    return (
        isinstance(reader, ElementwiseOp)
        and "dim" not in reader.properties
        and reader.results[0].type == value.type
        and all(o is value or base_of(o) is not base_of(value) for o in reader.operands)
    )


def _writes_strided(owner: Operation | Block, place: Array) -> bool:
    """Return whether the kernels of an operator can write to non-contiguous arrays."""
    assert isinstance(owner, CirhOp), "a module holds operators of CIRH only"
    if owner.result_layout is ResultLayout.ROWS:
        return len(place.shape) > 1 and place.is_matrix
    return owner.result_layout is ResultLayout.STRIDED


def parameter_of(value: SSAValue) -> StoredOp | None:
    """Return the parameter that a value is, or is a view of."""
    owner = base_of(value).owner
    return owner if isinstance(owner, StoredOp) else None


def transposed(value: SSAValue) -> SSAValue | None:
    """Return the value that this one transposes, if it is a transpose."""
    return value.owner.x if isinstance(value.owner, TransposeOp) else None
