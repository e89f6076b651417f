"""A LAIR kernel as loop nests over each of its rows: locations of values, and fusion.

Operators with one inner shape that read each other's values point by point form a stage: one loop
nest with values in registers. Between stages of the same row, values are in memory.
"""

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineDimExpr, AffineMap

from csrun.cirh.ops.base import plain
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError, stored_size
from csrun.compiler.emit.llvm.loops.members import (
    PARTS,
    SCRATCH,
    Access,
    LoopNest,
    Member,
    result_access,
)
from csrun.compiler.emit.llvm.loops.nests import rows_read
from csrun.compiler.emit.llvm.loops.operand_reads import OperandRead
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
        reads = [
            OperandRead(self._base_of(value), value, where, inner, self.has_rows)
            for value, where in zip(op.ins, maps, strict=False)
        ]
        self._place(member, reads)
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

    def _place(self, member: Member, reads: Sequence[OperandRead]) -> None:
        """Choose the stage of an operator, and locate its operands and its result."""
        targets = self._targets.get(member.value, [])
        least = min(self._least.get(member.value, 0), len(self.stages))
        stage = max([least, *(self._first_stage_of(member, read) for read in reads)])
        self._add_to_stage(member, self._after_readers(targets, stage))
        for read in reads:
            member.ins.append(self._operand(member, read))
        for target in targets:
            member.out.append(result_access(member, self._written(target), target, self.has_rows))
        if member.summed:
            if not targets:
                raise NoMachineCodeError("a sum over rows without an array")
            self._place_parts(member)

    def _first_stage_of(self, member: Member, read: OperandRead) -> int:
        """Return the first stage in which an operand is known."""
        producer = self._members.get(read.base)
        if producer is None:
            return 0
        is_point = not read.is_view and read.is_identity and member.function != "pick"
        if is_point and producer.inner == read.inner and producer.is_pointwise:
            return producer.stage
        if producer.summed or producer.comes_again:
            raise NoMachineCodeError("a sum over rows that is read in the loop")
        return producer.stage + 1

    def _after_readers(self, targets: Sequence[Array], stage: int) -> int:
        """Return the first stage from `stage` on that may write over arrays read before."""
        for array, reader, is_same in self._readers:
            if any(array.name == target.name for target in targets):
                if not is_same or array not in targets:
                    raise NoMachineCodeError(
                        f"{array.name} is read in one order, and written in another"
                    )
                stage = max(stage, reader.stage)
        return stage

    def _add_to_stage(self, member: Member, stage: int) -> None:
        """Add an operator to the first stage from `stage` on that it fits, or to a new one."""
        while stage < len(self.stages) and not self._fits(member, self.stages[stage]):
            stage += 1
        if stage == len(self.stages):
            self.stages.append(LoopNest(member.inner, member.reduced))
        member.stage = stage
        self.stages[stage].members.append(member)
        self.stages[stage].reduced = max(self.stages[stage].reduced, member.reduced)

    def _written(self, target: Array) -> int:
        """Return the number of the parameter that an array is written to."""
        number = self._parameter(target)
        if number in self.written or any(
            a.name == target.name and a != target and n in self.written
            for n, a in enumerate(self.parameters)
            if a.stem == target.stem
        ):
            raise NoMachineCodeError(f"{target.name} is written twice")
        self.written.add(number)
        return number

    def _place_parts(self, member: Member) -> None:
        """Choose the location of the partial sums of a sum over rows."""
        member.at = self.parts_bytes
        lanes = 16 if not member.kept_axes else 1
        size = lanes * max(prod(member.kept_axes), 1) * stored_size(member.out_dtype)
        self.parts_bytes += PARTS * aligned(size)

    def _fits(self, member: Member, stage: LoopNest) -> bool:
        """Return whether an operator can be in a stage."""
        if member.inner != stage.inner:
            return False
        return not (member.reduced and stage.reduced and member.reduced != stage.reduced)

    def _base_of(self, value: SSAValue) -> SSAValue:
        """Return the value under its views."""
        while value in self._views:
            value = self._views[value]
        return value

    def _operand(self, member: Member, read: OperandRead) -> "Access | Member":
        """Return the location of an operand, or the operator of the same stage that computes it."""
        producer = self._members.get(read.base)
        if producer is None:
            return self._read_array(member, read)
        if producer.stage == member.stage:
            return producer
        self._keep(producer)
        stored = producer.out[0]
        if read.is_view and stored.axes != contiguous(producer.kept_axes):
            raise NoMachineCodeError("a view of what is not contiguous")
        strides = contiguous(read.shape[1:]) if read.is_view else stored.axes
        if self.has_rows:
            # zeros: kept axes of size 1, of a sum along the row
            missing = len(read.shape) - 1 - len(strides)
            strides = (stored.row, *strides, *(0 for _ in range(missing)))
        row, axes, period = read.strided(strides)
        return Access(stored.parameter, stored.dtype, row, axes, period, stored.start)

    def _read_array(self, member: Member, read: OperandRead) -> Access:
        """Return the location of an operand in the program's array."""
        assert isinstance(read.base.owner, lair.ReadOp), "it is read or computed"
        assert not read.is_view, "a view is one of a value that the kernel computes"
        array = read.base.owner.array
        if any(array.name == self.parameters[n].name for n in self.written):
            raise NoMachineCodeError(f"{array.name} is read after it was written")
        row, axes, period = read.strided(array.strides)
        is_same = read.is_identity and not period and member.function != "pick"
        self._readers.append((array, member, is_same))
        return Access(self._parameter(array), array.dtype, row, axes, period)

    def _keep(self, member: Member) -> None:
        """Allocate scratch for a value of a row."""
        if member.out:
            return
        nbytes = max(prod(member.kept_axes), 1) * stored_size(member.out_dtype)
        axes = contiguous(member.kept_axes)
        member.out.append(Access(SCRATCH, member.out_dtype, 0, axes, start=self.scratch_bytes))
        self.scratch_bytes += aligned(nbytes)

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
