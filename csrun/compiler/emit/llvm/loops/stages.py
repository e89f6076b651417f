"""A LAIR kernel as loop nests over each of its rows: locations of values, and fusion.

Operators with one inner shape that read each other's values point by point form a stage: one loop
nest with values in registers. Between stages of the same row, values are in memory.
"""

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineConstantExpr, AffineDimExpr, AffineMap

from csrun.cirh.ops.base import plain
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError, stored_size
from csrun.compiler.emit.llvm.loops.members import PARTS, SCRATCH, Access, LoopNest, Member
from csrun.compiler.emit.llvm.loops.nests import rows_read
from csrun.compiler.graph.array import Array, Shape, contiguous
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair import operators
from csrun.compiler.lair.flat import MANY
from csrun.compiler.lair.formula_trace import Options
from csrun.executable.arrays import aligned

#: Row sizes for which the next row is prefetched; the hardware prefetcher stops at page boundaries.
ROWS_AHEAD_BYTES = range(1 << 10, 1 << 16)


class KernelStages:
    """Stages of a kernel, its parameters, and the numbers passed with each call.

    least: for each operator the first stage that it may be in; by default the first possible one.
    """

    def __init__(
        self,
        op: lair.KernelOp,
        writes: Mapping[str, Array],
        least: Mapping[SSAValue, int] | None = None,
    ) -> None:
        self.numbers = op.numbers
        self.rows: int = max(op.rows.value.data, 1)
        self.has_rows = op.rows.value.data > 0
        self.parameters: list[Array] = []
        self.written: set[int] = set()
        self.stages: list[LoopNest] = []
        self.scratch_bytes = 0
        self.parts_bytes = 0
        self._least = least or {}
        self._body = sorted(op.body.block.ops, key=self._least_of)
        self._targets: dict[SSAValue, list[Array]] = {}
        for write in self._body:
            if isinstance(write, lair.WriteOp):
                array = writes[write.symbol.data]
                self._targets.setdefault(write.value, []).append(array)
        self._members: dict[SSAValue, Member] = {}
        self._views: dict[SSAValue, SSAValue] = {}
        self._readers: list[tuple[Array, Member, bool]] = []
        for each in self._body:
            if isinstance(each, lair.ViewOp):
                self._views[each.out] = each.value
            elif isinstance(each, lair.GenericOp):
                self._add(each)
        if not self._members:
            raise NoMachineCodeError("a kernel without operators")

    @property
    def members(self) -> list[Member]:
        return [member for stage in self.stages for member in stage.members]

    @property
    def part_rows(self) -> int:
        """Return the number of rows of a partial sum over rows."""
        step = 16 if self.is_flat else 1
        return -(-self.rows // (PARTS * step)) * step

    @property
    def parts(self) -> int:
        return -(-self.rows // self.part_rows)

    @property
    def sums_rows(self) -> bool:
        return any(member.summed for member in self.members)

    @property
    def cut(self) -> int:
        """Number of rows that must stay together when threads share a kernel."""
        if any(member.comes_again for member in self.members):
            return self.rows
        return self.part_rows if self.sums_rows else 1

    @property
    def is_update(self) -> bool:
        """Return whether it updates weights: arrays of any length."""
        return self.rows == MANY

    @property
    def is_flat(self) -> bool:
        """Return whether all rows are one axis: each array is contiguous, or a single number."""
        if not self.has_rows:
            return False
        (first, *others) = self.stages
        if others or first.reduced or any(m.comes_again for m in first.members):
            return False
        if first.inner and any(m.summed for m in first.members):
            return False
        if any(m.function in (operators.OF_LABEL, operators.PICK) for m in first.members):
            return False
        dense = contiguous((self.rows, *first.inner))
        places = [a for m in first.members for a in (*m.ins, *m.out) if isinstance(a, Access)]
        return all(
            not a.period and ((a.row, *a.axes) == dense or not any((a.row, *a.axes)))
            for a in places
        )

    def row_ahead(self, stage: LoopNest) -> Access | None:
        """Return the array whose next row the nest should prefetch: the only one it reads by rows
        and no later nest reads.

        None if there is none, or if its rows are too short or too long.
        """
        if stage not in self.stages or self.sums_rows:
            return None
        later = rows_read(self.stages[self.stages.index(stage) + 1 :])
        found = [a for a in rows_read([stage]) if a not in later]
        if len(found) != 1 or found[0].period:
            return None
        is_long = found[0].row * stored_size(found[0].dtype) in ROWS_AHEAD_BYTES
        return found[0] if is_long else None

    # Placement of each operator.

    def _least_of(self, op: Operation) -> int:
        """Return the first stage that an operator may be in; for a read, a view or a write any."""
        return self._least.get(op.results[0], 0) if op.results else 0

    def _add(self, op: lair.GenericOp) -> None:
        maps = [m.data for m in op.maps if isinstance(m, AffineMapAttr)]
        space = self._space(op, maps)
        if not self.has_rows:
            space = (1, *space)  # one row
        if 0 in space:
            raise NoMachineCodeError("an array without elements")
        inner = space[1:]
        summed = [
            d + (not self.has_rows) for d, kind in enumerate(op.iterators) if kind == lair.REDUCTION
        ]
        call = next(o for o in op.body.block.ops if isinstance(o, lair.ScalarOp))
        function = call.function.data
        comes_again = 0 in summed and self._has_rows(maps[-1])
        reduced = _last_of(summed, space, 0 in summed and not comes_again)
        found = {name: plain(value) for name, value in call.options.data.items()}
        options: Options = tuple((k, v) for k, v in found.items() if v is not None)
        args: list[int | str] = [
            value.index if isinstance(value, BlockArgument) else _number_of(value)
            for value in call.args
        ]
        out_type = type_of(op.out)
        is_pick = function == operators.PICK
        member = Member(
            op.out,
            function,
            options,
            () if is_pick else inner,
            0 if is_pick else reduced,
            args,
            [],
            dtype_of(out_type),
            summed=0 in summed,
            dropped=tuple(d - 1 for d in summed if 0 < d < len(space) - reduced),
            classes=inner[-1] if is_pick else 0,
        )
        if comes_again:
            member.summed, member.comes_again = False, shape_of(out_type)[0]
        if member.reduced and (
            function not in (operators.IDENTITY, operators.LARGEST) or member.comes_again
        ):
            raise NoMachineCodeError(f"a reduction by {function}")
        self._place(member, list(op.ins), maps, inner)
        self._members[op.out] = member

    def _space(self, op: lair.GenericOp, maps: Sequence[AffineMap]) -> Shape:
        """Return the sizes of the axes of an operator's space, from its operands."""
        sizes: dict[int, int] = {}
        values = [*op.ins, op.out]
        for value, where in zip(values, maps, strict=True):
            for expression, size in zip(where.results, shape_of(type_of(value)), strict=True):
                if isinstance(expression, AffineDimExpr):
                    sizes[expression.position] = size
        if self.has_rows:
            sizes[0] = self.rows
        count = maps[-1].num_dims
        if set(sizes) != set(range(count)):
            raise NoMachineCodeError("an axis that no operand has")
        return tuple(sizes[d] for d in range(count))

    def _has_rows(self, where: AffineMap) -> bool:
        first = where.results[0] if where.results else None
        if isinstance(first, AffineBinaryOpExpr):
            first = first.lhs
        return self.has_rows and first == AffineDimExpr(0)

    def _place(
        self, member: Member, ins: list[SSAValue], maps: Sequence[AffineMap], inner: Shape
    ) -> None:
        """Choose the stage of an operator, and locate its operands and its result."""
        sources = [self._source(value) for value in ins]
        stage = min(self._least.get(member.value, 0), len(self.stages))
        for (base, _), value, where in zip(sources, ins, maps, strict=False):
            producer = self._members.get(base)
            if producer is None:
                continue
            is_point = base is value and self._is_identity(where) and member.function != "pick"
            if not is_point or producer.inner != inner or not producer.is_pointwise:
                if producer.summed or producer.comes_again:
                    raise NoMachineCodeError("a sum over rows that is read in the loop")
                stage = max(stage, producer.stage + 1)
            else:
                stage = max(stage, producer.stage)
        targets = self._targets.get(member.value, [])
        for array, reader, is_same in self._readers:
            if any(array.name == target.name for target in targets):
                if not is_same or array not in targets:
                    raise NoMachineCodeError(
                        f"{array.name} is read in one order, and written in another"
                    )
                stage = max(stage, reader.stage)
        while stage < len(self.stages) and not self._fits(member, self.stages[stage]):
            stage += 1
        if stage == len(self.stages):
            self.stages.append(LoopNest(member.inner, member.reduced))
        member.stage = stage
        self.stages[stage].members.append(member)
        self.stages[stage].reduced = max(self.stages[stage].reduced, member.reduced)
        for (base, shape), value, where in zip(sources, ins, maps, strict=False):
            member.ins.append(self._operand(member, base, shape, value, where, inner))
        for target in targets:
            number = self._parameter(target)
            if number in self.written or any(
                a.name == target.name and a != target and n in self.written
                for n, a in enumerate(self.parameters)
                if a.stem == target.stem
            ):
                raise NoMachineCodeError(f"{target.name} is written twice")
            self.written.add(number)
            member.out.append(self._result(member, number, target))
        if member.summed:
            member.at = self.parts_bytes
            lanes = 16 if not member.kept_axes else 1
            size = lanes * max(prod(member.kept_axes), 1) * stored_size(member.out_dtype)
            self.parts_bytes += PARTS * aligned(size)
            if not targets:
                raise NoMachineCodeError("a sum over rows without an array")

    def _fits(self, member: Member, stage: LoopNest) -> bool:
        """Return whether an operator can be in a stage."""
        if member.inner != stage.inner:
            return False
        return not (member.reduced and stage.reduced and member.reduced != stage.reduced)

    def _source(self, value: SSAValue) -> tuple[SSAValue, Shape]:
        """Return the value under a view, and the shape under which it is seen."""
        shape = shape_of(type_of(value))
        while value in self._views:
            value = self._views[value]
        return value, shape

    def _operand(
        self,
        member: Member,
        base: SSAValue,
        shape: Shape,
        value: SSAValue,
        where: AffineMap,
        inner: Shape,
    ) -> "Access | Member":
        producer = self._members.get(base)
        if producer is not None:
            if producer.stage == member.stage:
                return producer
            self._keep(producer)
            stored = producer.out[0]
            if base is not value and stored.axes != contiguous(producer.kept_axes):
                raise NoMachineCodeError("a view of what is not contiguous")
            strides = stored.axes if base is value else contiguous(shape[1:])
            if self.has_rows and len(shape) != len(strides) + 1:
                # a kept axis of size 1, of a sum along the row
                strides = (*strides, *(0 for _ in range(len(shape) - 1 - len(strides))))
            own = (stored.row, *strides) if self.has_rows else strides
            found = self._strided(where, own, inner, shape)
            return Access(
                stored.parameter, stored.dtype, found[0], found[1], found[2], stored.start
            )
        assert isinstance(base.owner, lair.ReadOp), "it is read or computed"
        array = base.owner.array
        if base is not value:
            seen = array.reshaped(shape)
            if seen is None:
                raise NoMachineCodeError("a view of what is not contiguous")
        if any(array.name == self.parameters[n].name for n in self.written):
            raise NoMachineCodeError(f"{array.name} is read after it was written")
        row, axes, period = self._strided(where, array.strides, inner, shape)
        is_same = self._is_identity(where) and not period and member.function != "pick"
        self._readers.append((array, member, is_same))
        return Access(self._parameter(array), array.dtype, row, axes, period)

    def _strided(
        self, where: AffineMap, strides: Sequence[int], inner: Shape, shape: Shape
    ) -> tuple[int, tuple[int, ...], int]:
        """Return strides of the rows and of the inner axes of a space, and the period of the
        rows.
        """
        row, period, axes = 0, 0, [0] * len(inner)
        for expression, stride, size in zip(where.results, strides, shape, strict=True):
            match expression:
                case AffineConstantExpr():
                    continue
                case AffineDimExpr():
                    place = expression.position - self.has_rows
                    if place < 0:
                        row = stride
                    else:
                        axes[place] = stride if size > 1 else 0
                case AffineBinaryOpExpr() if expression.lhs == AffineDimExpr(0) and self.has_rows:
                    row, period = stride, size
                case _:
                    raise NoMachineCodeError(f"an index of {expression}")
        return row, tuple(axes), period

    def _is_identity(self, where: AffineMap) -> bool:
        return tuple(where.results) == tuple(AffineDimExpr(d) for d in range(where.num_dims))

    def _keep(self, member: Member) -> None:
        """Allocate scratch for a value of a row."""
        if member.out:
            return
        nbytes = max(prod(member.kept_axes), 1) * stored_size(member.out_dtype)
        axes = contiguous(member.kept_axes)
        member.out.append(Access(SCRATCH, member.out_dtype, 0, axes, start=self.scratch_bytes))
        self.scratch_bytes += aligned(nbytes)

    def _result(self, member: Member, number: int, target: Array) -> Access:
        """Return the location of the result in the program's array, without size-1 axes of a
        sum.
        """
        strides = target.strides
        row = 0
        if self.has_rows and not member.summed:
            row, strides = strides[0], strides[1:]
        shape = target.shape[len(target.shape) - len(strides) :]
        kept = [(n, s) for n, s in zip(shape, strides, strict=True)]
        wanted = list(member.kept_axes)
        while len(kept) > len(wanted):  # axes of size 1 that were summed
            place = next((d for d, (n, _) in enumerate(kept) if n == 1), None)
            if place is None:
                raise NoMachineCodeError("a result of another shape")
            at = place if member.summed and place == 0 else len(kept) - 1
            if kept[at][0] != 1:
                raise NoMachineCodeError("a result of another shape")
            del kept[at]
        if [n for n, _ in kept] != wanted:
            raise NoMachineCodeError("a result of another shape")
        if target.repeats:
            raise NoMachineCodeError("a result that repeats")
        if target.dtype != member.out_dtype:
            raise NoMachineCodeError("a result of another type")
        return Access(number, target.dtype, row, tuple(s for _, s in kept), member.comes_again)

    def _parameter(self, array: Array) -> int:
        """Return the index of a program's array among the parameters."""
        if array not in self.parameters:
            self.parameters.append(array)
        return self.parameters.index(array)


def _last_of(summed: Sequence[int], space: Shape, adds_rows: bool) -> int:
    """Return the last axes of a space that are summed; for a sum over all rows including those of
    size 1.
    """
    own = [d for d in summed if d]
    if adds_rows:
        last = len(space)
        while last > 1 and (last - 1 in own or space[last - 1] == 1):
            last -= 1
        return len(space) - last if any(d >= last for d in own) else 0
    if own != list(range(len(space) - len(own), len(space))):
        raise NoMachineCodeError("a sum over inner axes that are not the last ones")
    return len(own)


def _number_of(value: SSAValue) -> str:
    assert isinstance(value.owner, lair.NumberOp), "a body's operands are arguments and numbers"
    return value.owner.text.data
