"""Insertion of copies of values that need another memory layout."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.ops.base import CirhOp, Reads
from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import LossOp, OutputOp
from csrun.cirh.ops.shape import VIEWS, CloneOp, ViewOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.labels import label_ranges
from csrun.compiler.graph.view_ops import numbers_of, view_of, written_by
from csrun.compiler.lair.operators import scalar_of
from csrun.compiler.passes.rewrite import Pass, PassResult


@dataclass(frozen=True)
class Copies(Pass):
    """Before: any valid module. After: an equivalent module, with a `clone` before

    - a view that strides cannot express,
    - a matrix product, of a matrix whose layout BLAS does not accept,
    - a norm, a convolution, a pooling and a table lookup, of operands that are not dense,
    - a rotation, of pairs that are not adjacent,
    - a kernel, of a number that it reads as an array,
    - an update, of a gradient that has other readers, or that no kernel can write in place: an
      input, a weight, a number, a part of something, a norm's result whose axes are permuted.
    """

    name: ClassVar[str] = "copies"

    def apply(self, module: ModuleOp) -> PassResult:
        """Insert them, and count them."""
        copying = _Copying(module)
        copying.run()
        return PassResult(copying.count > 0, (f"copies: {copying.count}",))


class _Copying:
    def __init__(self, module: ModuleOp) -> None:
        self._operations = list(module.ops)
        self._numbers = numbers_of(self._operations, label_ranges(self._operations))
        self._arrays: dict[SSAValue, Array] = {}
        self._copies: dict[SSAValue, SSAValue] = {}
        self.count = 0

    def run(self) -> None:
        for op in self._operations:
            for index in self._wanting(op):
                op.operands[index] = self._copy_of(op.operands[index], op)
            for result in op.results:
                self._arrays[result] = self._array_of(result)
        updates = [op for op in self._operations if isinstance(op, UpdatingOp)]
        for update in updates:
            if update.grad in self._numbers or not _is_written(update):
                self._write(update)

    def _wanting(self, op: Operation) -> Iterator[int]:
        """Return the operands that must be copied."""
        assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
        for index, operand in enumerate(op.operands):
            if operand in self._numbers:
                takes = _takes_text(op, index)
            else:
                takes = _takes_array(op, self._arrays[operand])
            if not takes:
                yield index

    def _array_of(self, value: SSAValue) -> Array:
        owner = value.owner
        if isinstance(owner, VIEWS):
            found = view_of(owner, self._arrays[owner.x])
            assert found is not None, "a copy is viewed in any shape"
            return found
        return Array("", shape_of(type_of(value)), dtype_of(type_of(value)))

    def _copy_of(self, value: SSAValue, reader: Operation) -> SSAValue:
        """Insert one copy for all readers; a value for the host is copied before the loss."""
        if value not in self._copies:
            before = not isinstance(reader, OutputOp)
            place = InsertPoint.before(reader) if before else InsertPoint.after(_owner(value))
            self._copies[value] = self._insert(value, reader, place)
        return self._copies[value]

    def _insert(self, value: SSAValue, reader: Operation, place: InsertPoint) -> SSAValue:
        scope = reader.properties.get("scope")
        copy = CloneOp.of([value], **({} if scope is None else {"scope": scope}))
        copy.location = reader.location
        Rewriter.insert_op(copy, place)
        self._arrays[copy.out] = self._array_of(copy.out)
        self.count += 1
        return copy.out

    def _write(self, update: UpdatingOp) -> None:
        """Insert a copy as the gradient, at the parameter's layer in the backward pass."""
        after = self._last(update)
        update.operands[1] = copy = self._insert(update.grad, update, InsertPoint.after(after))
        if self._operations.index(update) < self._operations.index(after):  # an assignment
            update.detach()  # type: ignore[no-untyped-call]
            Rewriter.insert_op(update, InsertPoint.after(_owner(copy)))

    def _last(self, update: UpdatingOp) -> Operation:
        """Return the last of the loss, the gradient's computation, and the layer's last
        operator.
        """
        scope, source = update.properties.get("scope"), update.grad.owner
        found = [
            op
            for op in self._operations
            if isinstance(op, LossOp)
            or op is source
            or (op.properties.get("scope") == scope and not isinstance(op, UpdatingOp))
        ]
        return found[-1]


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation), "CIRH has no block arguments"
    return value.owner


def _is_written(update: UpdatingOp) -> bool:
    """Return whether a kernel writes the gradient directly to the parameter's place in the
    store.
    """
    found = written_by(update)
    if found is None or found[1].is_contiguous:
        return found is not None
    owner = found[0].owner
    return isinstance(owner, CirhOp) and owner.READS is not Reads.CONTIGUOUS


def _takes_array(op: CirhOp, array: Array) -> bool:
    """Return whether an operator accepts an array's layout."""
    match op.READS:
        case Reads.MATRICES:
            return len(array.shape) < 2 or array.is_matrix  # a bias is not a matrix
        case Reads.CONTIGUOUS:
            return array.is_contiguous
        case Reads.LAST_AXIS:
            return array.strides[-1] == 1
        case Reads.STRIDED:
            return not isinstance(op, ViewOp) or view_of(op, array) is not None


def _takes_text(op: CirhOp, index: int) -> bool:
    """Return whether an operator takes a number as text."""
    return op.operand_name(index) in op.TAKES_TEXT or scalar_of(op) is not None
