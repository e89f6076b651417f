"""Rewriting of a module with a backward pass from the full batch to a part of it.

A front end that only traces forward can trace again with the samples of a part. A recorded step has
the batch size in the shapes of both passes, and cannot be recorded again. Each value is therefore
rebuilt according to the axis that carries its samples. Scalars keep their value: a divisor refers
to the full batch. Each result must be computed per sample, or be a sum over samples, which is then
added over all parts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.batch_axes import BatchRelation, Dependence, Dependences
from csrun.cirh.ops.base import CirhOp, Plain, attribute, ints
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.ctc import CtcOp
from csrun.cirh.ops.learning import MinimizeOp, UpdatingOp
from csrun.cirh.ops.model import FullOp, InputOp, LeafOp, LossOp
from csrun.cirh.ops.products import AddmmOp, MatmulOp, MmOp
from csrun.cirh.ops.shape import ExpandOp, ViewOp
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, type_of
from csrun.compiler.errors import CompileError, refused, short_name
from csrun.compiler.passes.rewrite import Pass, PassResult
from csrun.compiler.passes.shares import insert_shares, is_zero

#: Properties that are the sizes of the first result.
_SIZES = frozenset({"shape", "input_sizes", "input_size"})


@dataclass(frozen=True)
class Rebatching(Pass):
    """Before: a module with its backward pass and its updates, without dead operators.

    After: the same one of `samples` samples. The losses, and the gradients, of such parts of a
    batch add up to those of the full batch; a value that is equal in all parts and is added to a
    sum over samples is divided among the parts.

    how: reason for the parts, in messages.

    Raises: CompileError, with the user's line, for an operation on the batch as a whole
    """

    samples: int
    how: str = "in parts"

    name: ClassVar[str] = "rebatching"

    def apply(self, module: ModuleOp) -> PassResult:
        """Make each operator again, in its order."""
        batch = self._batch_of(module.ops)
        found = insert_shares(module, batch // self.samples)
        operations = list(module.ops)
        self._require_parts(operations, found)
        parts = _PartBuilder(found, batch, self.samples)
        for op in operations:
            try:
                parts.make(op)
            except VerifyException as error:
                raise self._refused(op, str(error)) from error
        # Last first: an operator whose results are read cannot be erased.
        for op in reversed(operations):
            Rewriter.erase_op(op)
        module.body.block.add_ops(parts.operations)
        return PassResult(True, (f"samples: {self.samples} of {parts.batch}",))

    def _batch_of(self, operations: Iterable[Operation]) -> int:
        inputs = [op for op in operations if isinstance(op, InputOp) and op.from_script is None]
        rows = {shape_of(type_of(op.out))[:1] for op in inputs}
        if len(rows) != 1 or () in rows:
            raise CompileError(f"each input array must have one row per sample to run {self.how}")
        return next(iter(rows))[0]

    def _require_parts(self, operations: Sequence[Operation], found: Dependences) -> None:
        for op in operations:
            is_mixed = any(found[result].over is BatchRelation.MIXED for result in op.results)
            if is_mixed and not any(found[o].over is BatchRelation.MIXED for o in op.operands):
                raise self._refused(op, f"{short_name(op)} mixes the samples of a batch")
            is_loss = isinstance(op, LossOp | MinimizeOp)
            if is_loss and found[op.operands[0]].over is not BatchRelation.PART:
                raise self._refused(op, "the loss is not a sum over samples")
            if isinstance(op, UpdatingOp) and not _adds_up(op.grad, found):
                raise self._refused(op, "the gradient is not a sum over samples")

    def _refused(self, op: Operation, why: str) -> CompileError:
        scope = op.properties.get("scope")
        layer = scope.data if isinstance(scope, StringAttr) else "model"
        error = refused(op, f"layer {layer}: {why} and cannot run {self.how}")
        error.layer = layer
        return error


def _adds_up(gradient: SSAValue, found: Dependences) -> bool:
    """Return whether the gradients of all parts add up to that of the batch, or are zero."""
    return is_zero(gradient) or found[gradient].over is BatchRelation.PART


class _PartBuilder:
    """Operators of a part as they are built, and the values that replace the module's."""

    def __init__(self, found: Dependences, batch: int, samples: int) -> None:
        self.batch = batch
        self._found, self._samples = found, samples
        self._made: dict[SSAValue, SSAValue] = {}
        self._order: list[Operation] = []
        self._resized: dict[SSAValue, dict[tuple[int, int], SSAValue]] = {}
        self._added_after: dict[Operation, list[Operation]] = {}

    @property
    def operations(self) -> list[Operation]:
        """Operators built so far, in order."""
        return [each for op in self._order for each in (op, *self._added_after.get(op, ()))]

    def make(self, op: Operation) -> None:
        """Build the operator for a part.

        Raises: VerifyException if its shapes do not follow from those of its operands
        """
        assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
        kinds = [self._kind(result) for result in op.results]
        if isinstance(op, LeafOp):
            new: Operation = type(op).declare(kinds[0], **op.properties)
        else:
            operands = [self._operand(op, number) for number in range(len(op.operands))]
            new = type(op).of(operands, **self._properties(op))
        if [result.type for result in new.results] != kinds:
            raise VerifyException(f"the result of {op.name} changes shape")
        new.location = op.location
        for result, made in zip(op.results, new.results, strict=True):
            made.name_hint = result.name_hint
            self._made[result] = made
        self._order.append(new)

    def _kind(self, value: SSAValue) -> Tensor:
        kind, one = type_of(value), self._found[value]
        return tensor_type(self._sizes(shape_of(kind), one), dtype_of(kind))

    def _sizes(self, sizes: Sequence[int], one: Dependence) -> tuple[int, ...]:
        """Return the sizes of a part's value, from the batch's."""
        if one.axis is None:
            return tuple(sizes)
        count = one.sample_axis.count
        if sizes[one.axis] != self.batch * count:
            raise VerifyException(f"shape {list(sizes)} does not have {count} rows per sample")
        rows = self._samples * count
        return *sizes[: one.axis], rows, *sizes[one.axis + 1 :]

    def _properties(self, op: CirhOp) -> dict[str, Plain]:
        found: dict[str, Plain] = dict(op.properties)
        for name in _SIZES & op.properties.keys():
            found[name] = self._sizes(ints(op.properties, name), self._found[op.results[0]])
        return found

    def _operand(self, op: CirhOp, number: int) -> SSAValue:
        """Return the replacement of an operand; one without samples gets the part's rows."""
        operand = op.operands[number]
        made, own = self._made[operand], shape_of(type_of(operand))
        one = self._samples_of_others(op, number)
        if one is None or one.axis is None or self._found[operand].axis is not None:
            return made
        if one.axis < 0 or own[one.axis] == 1:
            return made
        return self._constant_along(made, one.axis, self._samples * one.sample_axis.count)

    def _samples_of_others(self, op: CirhOp, number: int) -> Dependence | None:
        """Return axis and rows per sample of an operand that must match others with samples."""
        rank = len(shape_of(type_of(op.operands[number])))
        if isinstance(op, MmOp | AddmmOp):
            left, right = (self._found[value] for value in op.operands[-2:])
            if op.operands[number] is op.lhs and right.axis == 0:
                return right.on(1)
            return left.on(0) if op.operands[number] is op.rhs and left.axis == 1 else None
        if not op.BY_SAMPLE:
            return None
        one = self._found[op.results[0]]
        if one.axis is None:
            return None
        if isinstance(op, CtcOp):  # of a gradient, of targets or of lengths
            return one.on(0)
        axis = one.axis - len(shape_of(type_of(op.results[0]))) + rank
        return None if isinstance(op, MatmulOp) and axis >= rank - 2 else one.on(axis)

    def _constant_along(self, value: SSAValue, axis: int, rows: int) -> SSAValue:
        """Return a value that is constant along an axis, with this many rows there."""
        known = self._resized.setdefault(value, {})
        if (axis, rows) not in known:
            owner = value.owner
            assert isinstance(owner, CirhOp), "a module holds operators of CIRH only"
            new = self._with_rows(owner, axis, rows)
            new.location = owner.location
            self._added_after.setdefault(owner, []).append(new)
            known[axis, rows] = new.results[0]
        return known[axis, rows]

    def _with_rows(self, op: CirhOp, axis: int, rows: int) -> CirhOp:
        """Return an operator with another number of equal rows (see `is_constant_along`)."""
        kind = type_of(op.results[0])
        sizes = *shape_of(kind)[:axis], rows, *shape_of(kind)[axis + 1 :]
        from_end = axis - len(sizes)
        match op:
            case FullOp():
                return FullOp.declare(tensor_type(sizes, dtype_of(kind)), **op.properties)
            case ConstantOp():
                values = np.repeat(op.array().take([0], axis), rows, axis)
                given: dict[str, Plain] = {**op.properties, "values": ConstantOp.packed(values)}
                return ConstantOp.declare(tensor_type(sizes, dtype_of(kind)), **given)
            case ExpandOp():
                given = {**op.properties, "shape": sizes}
                return ExpandOp.of([self._of_rows(op.x, from_end, rows)], **given)
            case ViewOp():  # of a row whose numbers are all equal
                one = self._of_rows(op.x, -1, 1)
                return ExpandOp.of([one], **{**op.properties, "shape": attribute(sizes)})
            case MmOp() | AddmmOp():
                *bias, lhs, rhs = op.operands
                operands = [*bias, self._of_rows(lhs, from_end, rows), rhs]
            case _:
                operands = [self._of_rows(x, from_end, rows) for x in op.operands]
        return type(op).of(operands, **op.properties)

    def _of_rows(self, value: SSAValue, from_end: int, rows: int) -> SSAValue:
        """Return an operand with this many rows on an axis, counted from the last one; or with its
        single row.
        """
        if _has_one_row(value, from_end):
            return value
        return self._constant_along(value, len(shape_of(type_of(value))) + from_end, rows)


def _has_one_row(value: SSAValue, from_end: int) -> bool:
    """Return whether it is broadcast along an axis, counted from the last one."""
    sizes = shape_of(type_of(value))
    return -from_end > len(sizes) or sizes[from_end] == 1
