"""A LAIR kernel as a machine-code function: `void name(ptr arguments, i64 first, i64 last)`.

`arguments` are the addresses of the parameters, of the numbers (float64), of scratch for a row, and
of partial sums over rows. `name.end(ptr arguments)` adds the partial sums after the last row.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.subnormals import scale_lanes
from csrun.compiler.emit.llvm.lane_values import (
    INDEX,
    LANES,
    Kind,
    LaneValue,
    NoMachineCodeError,
    index,
    stored_size,
)
from csrun.compiler.emit.llvm.loops.label_operators import less_label, picked
from csrun.compiler.emit.llvm.loops.members import SCRATCH, Access, LoopNest, Member
from csrun.compiler.emit.llvm.loops.nests import (
    NestPoint,
    accesses_in,
    accesses_of,
    argument,
    axes_of,
    part_bytes,
)
from csrun.compiler.emit.llvm.loops.row_sums import RowReduction, parallel_sums, reductions_of
from csrun.compiler.emit.llvm.loops.scalars import call_function, call_scalar, convert
from csrun.compiler.emit.llvm.loops.stages import KernelStages
from csrun.compiler.lair import operators
from csrun.compiler.lair.dialect import constant_of
from csrun.executable.arrays import ALIGNMENT_BYTES


class FunctionWriter:
    """Writes the functions of a kernel."""

    def __init__(self, stages: KernelStages) -> None:
        self._stages = stages
        self._numbers = stages.numbers
        self._code = Code()
        self._rows: dict[tuple[int, str, int, int, int], str] = {}
        self._pointers: list[str] = []
        self._scalars: dict[Access, LaneValue] = {}
        self._number_values: dict[str, LaneValue] = {}

    def write(self) -> list[str]:
        """Return its instructions."""
        self._load_arguments()
        first, last = LaneValue("%first", INDEX), LaneValue("%last", INDEX)
        if self._stages.is_flat:
            self._write_flat(first, last)
        else:
            self._write_rows(first, last)
        return self._finished()

    @property
    def declared(self) -> dict[str, str]:
        """Declarations of the intrinsics that it calls."""
        return self._code.declared

    def _finished(self) -> list[str]:
        code = self._code
        return ["entry:", *code.entry, *code.lines, "  ret void"]

    def _load_arguments(self) -> None:
        count = len(self._stages.parameters)
        self._pointers = [argument(self._code, n) for n in range(count)]
        if self._numbers:
            numbers = argument(self._code, count)
            for n, text in enumerate(self._numbers):
                place = self._code.offset(numbers, "float64", index(n))
                self._number_values[text] = self._code.load(place, Kind("float64"))
        if self._stages.scratch_bytes:
            self._scratch = argument(self._code, count + 1)
        if self._stages.parts_bytes:
            self._parts = argument(self._code, count + 2)

    # all rows as one axis

    def _write_flat(self, first: LaneValue, last: LaneValue) -> None:
        (stage,) = self._stages.stages
        elements = index(prod(stage.inner))
        start = self._code.op("mul", first, elements)
        stop = self._code.op("mul", last, elements)
        self._rows = {a.base: self._pointer(a) for m in stage.members for a in accesses_of(m)}
        size = self._code.op("sub", stop, start)
        full = self._code.op("sub", stop, self._code.op("and", size, index(LANES - 1)))
        with self._code.loop(start, full, LANES) as at:
            self._flat_point(stage, at, None)
        rest = self._code.op("sub", stop, full)
        with self._code.when(self._code.compare("sgt", rest, index(0))):
            self._flat_point(stage, full, self._mask(rest))

    def _flat_point(self, stage: LoopNest, at: LaneValue, mask: LaneValue | None) -> None:
        values: dict[int, LaneValue] = {}
        for member in stage.members:
            args = self._args(member, values, lambda a: self._flat_load(a, at, mask), LANES)
            value = self._computed(member, args, LANES)
            values[id(member)] = value
            if member.summed:
                self._add_flat(member, value, at, mask)
                continue
            for access in member.out:
                place = self._code.offset(self._rows[access.base], access.dtype, at)
                self._code.store(value, place, mask)

    def _flat_load(self, access: Access, at: LaneValue, mask: LaneValue | None) -> LaneValue:
        pointer = self._rows[access.base]
        if not access.row and not any(access.axes):
            return self._code.splat(self._code.load(pointer, Kind(access.dtype)), LANES)
        place = self._code.offset(pointer, access.dtype, at)
        return self._code.load(place, Kind(access.dtype, LANES), mask)

    def _add_flat(
        self, member: Member, value: LaneValue, at: LaneValue, mask: LaneValue | None
    ) -> None:
        """Add lanes to the partial sums of the rows."""
        part, is_first = self._part_of(at)
        place = self._part_place(member, part, LANES)
        if mask is not None:
            value = self._code.select(mask, value, self._code.constant(0, value.kind))
        old = self._code.load(place, value.kind)
        total = call_function(self._code, "add", [old, value])
        self._code.store(self._code.select(self._code.splat(is_first, LANES), value, total), place)

    # row by row

    def _write_rows(self, first: LaneValue, last: LaneValue) -> None:
        with self._code.loop(first, last) as row:
            self._rows = {}
            for member in self._stages.members:
                for access in accesses_of(member):
                    if access.base not in self._rows:
                        self._rows[access.base] = self._row_pointer(access, row)
            self._begin_parts(row)
            for stage in self._stages.stages:
                self._write_stage(stage, row)

    def _row_pointer(self, access: Access, row: LaneValue) -> str:
        pointer = self._pointer(access)
        if not access.row:
            return pointer
        if access.period:
            row = self._code.op("urem", row, index(access.period))
        return self._code.offset(
            pointer, access.dtype, self._code.op("mul", row, index(access.row))
        )

    def _pointer(self, access: Access) -> str:
        if access.parameter != SCRATCH:
            return self._pointers[access.parameter]
        return self._code.offset(self._scratch, "int8", index(access.start))

    def _write_stage(self, stage: LoopNest, row: LaneValue) -> None:
        accesses = accesses_in(stage)
        outer, inner = axes_of(stage, accesses)
        *loops, last = inner or [(1, [])]
        self._scalars = self._row_scalars(stage)
        with ExitStack() as nest:
            places = [
                (dims, nest.enter_context(self._code.loop(index(0), index(size))))
                for size, dims in outer
            ]
            sums = reductions_of(self._code, stage, last[0])
            with ExitStack() as reduction:
                for size, dims in loops:
                    loop = self._code.loop(index(0), index(size))
                    places.append((dims, reduction.enter_context(loop)))
                self._write_vectors(stage, row, places, last, sums)
            for member in stage.members:
                if member.reduced:
                    self._end_of_sum(member, row, places, sums[id(member)])

    def _row_scalars(self, stage: LoopNest) -> dict[Access, LaneValue]:
        """Return the numbers that are constant over a row and that no point writes."""
        found = {}
        written = {access.base for member in stage.members for access in member.out}
        places = [a for m in stage.members if not m.classes for a in m.ins]
        for access in places:
            if not isinstance(access, Access) or access.base in written:
                continue
            if not any(s and n > 1 for s, n in zip(access.axes, stage.inner, strict=True)):
                found[access] = self._code.load(self._rows[access.base], Kind(access.dtype))
        return found

    def _write_vectors(
        self,
        stage: LoopNest,
        row: LaneValue,
        places: Sequence[tuple[list[int], LaneValue]],
        last: tuple[int, list[int]],
        sums: dict[int, RowReduction],
    ) -> None:
        """Write the last axis: groups of vectors, then single vectors, then a masked remainder."""
        size, dims = last
        ahead = None if places else self._stages.row_ahead(stage)

        def write(
            at: LaneValue, part: int = 0, lanes: int = LANES, mask: LaneValue | None = None
        ) -> None:
            point = NestPoint(stage, row, [*places, (dims, at)], dims, lanes, mask, part)
            self._point(point, sums)
            if ahead is not None:
                next_row = self._code.offset(
                    self._place(ahead, point), ahead.dtype, index(ahead.row)
                )
                self._code.prefetch(next_row)

        if size == 1:
            write(index(0), lanes=1)
            return
        first = 0
        for parts in dict.fromkeys((parallel_sums(stage, size), 1)):
            first = self._write_parts(first, size, parts, write)
        if first < size:
            write(index(first), mask=self._code.first_lanes(size - first))

    def _write_parts(
        self, first: int, size: int, parts: int, write: Callable[[LaneValue, int], None]
    ) -> int:
        """Write groups of `parts` vectors while a full group is left; return the index after the
        last group.
        """
        step = parts * LANES
        end = size - (size - first) % step
        with ExitStack() as loop:
            at = index(first)
            if end - first > step:
                at = loop.enter_context(self._code.loop(at, index(end), step))
            for part in range(parts if end > first else 0):
                write(self._code.op("add", at, index(part * LANES)) if part else at, part)
        return end

    def _point(self, point: NestPoint, sums: dict[int, RowReduction]) -> None:
        values: dict[int, LaneValue] = {}
        for member in point.stage.members:
            if member.function == operators.PICK:
                value = picked(self._code, member, self._rows)
            else:
                args = self._args(
                    member, values, lambda access: self._load(access, point), point.lanes
                )
                value = self._computed(member, args, point.lanes, point)
            values[id(member)] = value
            if member.reduced:
                sums[id(member)].add(value, point.mask, point.part)
            elif member.summed:
                self._add_to_part(member, value, point)
            else:
                self._store(member, value, point)

    def _load(self, access: Access, point: NestPoint) -> LaneValue:
        if access in self._scalars:
            return self._code.splat(self._scalars[access], point.lanes)
        stride = access.axes[point.dims[-1]] if point.dims else 0
        pointer = self._place(access, point)
        if point.lanes == 1:
            return self._code.load(pointer, Kind(access.dtype))
        if not stride:
            return self._code.splat(self._code.load(pointer, Kind(access.dtype)), point.lanes)
        kind = Kind(access.dtype, point.lanes)
        if stride == 1:
            return self._code.load(pointer, kind, point.mask)
        return self._code.gather(pointer, kind, stride, point.mask)

    def _place(self, access: Access, point: NestPoint, start: str | None = None) -> str:
        """Return the address of a point's first lane."""
        pointer = self._rows[access.base] if start is None else start
        for dims, at in point.places:
            stride = access.axes[dims[-1]] if dims else 0
            if not stride or at.text == "0":
                continue
            elements = at if stride == 1 else self._code.op("mul", at, index(stride))
            pointer = self._code.offset(pointer, access.dtype, elements)
        return pointer

    def _store(self, member: Member, value: LaneValue, point: NestPoint) -> None:
        for access in member.out:
            pointer = self._place(access, point)
            own = value
            if member.comes_again:
                # The first of the repeated rows starts the sum.
                is_first = self._code.compare("slt", point.row, index(member.comes_again))
                old = self._load(access, point)
                total = call_function(self._code, "add", [old, value])
                own = self._code.select(self._code.splat(is_first, point.lanes), value, total)
            stride = access.axes[point.dims[-1]] if point.dims else 0
            if point.lanes == 1 or stride == 1:
                self._code.store(own, pointer, point.mask)
            elif stride:
                self._code.scatter(own, pointer, stride, point.mask)
            else:
                raise NoMachineCodeError("a result that repeats")

    # Values.

    def _args(
        self,
        member: Member,
        values: dict[int, LaneValue],
        load: Callable[[Access], LaneValue],
        lanes: int,
    ) -> list[LaneValue]:
        ins = [values[id(each)] if isinstance(each, Member) else load(each) for each in member.ins]
        of_numbers = member.out_dtype if ins or member.out_dtype != "bool" else "float64"
        kind = next((v.kind for v in ins if v.kind.dtype != "bool"), Kind(of_numbers, lanes))
        return [ins[a] if isinstance(a, int) else self._number(a, kind) for a in member.args]

    def _number(self, text: str, kind: Kind) -> LaneValue:
        """Return a number with the type of the arrays, in all lanes."""
        number = constant_of(text)
        if number is not None:
            return self._code.constant(number, kind)
        value = self._number_values[text]
        if not kind.is_float:
            raise NoMachineCodeError("a number of the step among integers")
        return self._code.splat(convert(self._code, value, kind.dtype), kind.lanes)

    def _computed(
        self, member: Member, args: list[LaneValue], lanes: int, point: NestPoint | None = None
    ) -> LaneValue:
        kind = Kind(member.out_dtype, lanes)
        if member.function == operators.OF_LABEL:
            assert point is not None, "its rows are not one axis"
            if len(member.inner) != 1:
                raise NoMachineCodeError("a label of more than one axis")
            return less_label(self._code, member, args, point.places[-1][1])
        if member.function == operators.LARGEST:
            return args[0]
        if self._stages.is_update and member.is_scaling:
            x, number = args if isinstance(member.args[1], str) else args[::-1]
            return scale_lanes(self._code, x, number)
        return call_scalar(self._code, member.function, member.options, args, kind)

    def _mask(self, count: LaneValue) -> LaneValue:
        """Return the mask of the first lanes."""
        lanes = self._code.lane_numbers()
        return self._code.compare("slt", lanes, self._code.splat(count, LANES))

    # Sums.

    def _end_of_sum(
        self,
        member: Member,
        row: LaneValue,
        places: Sequence[tuple[list[int], LaneValue]],
        reduction: RowReduction,
    ) -> None:
        """Reduce a sum to one number, and store it."""
        value = reduction.result()
        kept = len(member.inner) - member.reduced
        outer = [(dims, at) for dims, at in places if dims and dims[-1] < kept]
        point = NestPoint(LoopNest(member.inner, 0), row, outer, [], 1, None)
        if member.summed:
            self._add_to_part(member, value, point)
        else:
            self._store(member, value, point)

    def _part_of(self, row: LaneValue) -> tuple[LaneValue, LaneValue]:
        """Return the partial sum of a row, and whether the row begins it."""
        size = index(self._stages.part_rows)
        part = self._code.op("udiv", row, size)
        first = self._code.op("mul", part, size)
        return part, self._code.compare("eq", row, first)

    def _part_place(self, member: Member, part: LaneValue, elements: int) -> str:
        nbytes = part_bytes(member, elements)
        start = self._code.offset(self._parts, "int8", index(member.at))
        return self._code.offset(start, "int8", self._code.op("mul", part, index(nbytes)))

    def _begin_parts(self, row: LaneValue) -> None:
        """Initialize partial sums to -0.0, which is neutral for addition."""
        sums = [member for member in self._stages.members if member.summed]
        if not sums:
            return
        part, is_first = self._part_of(row)
        with self._code.when(is_first):
            for member in sums:
                elements = max(prod(member.kept_axes), 1)
                kind = Kind(member.out_dtype, ALIGNMENT_BYTES // stored_size(member.out_dtype))
                nothing = self._code.constant(-0.0 if kind.is_float else 0, kind)
                start = self._part_place(member, part, elements)
                with self._code.loop(index(0), index(elements), kind.lanes) as at:
                    self._code.store(nothing, self._code.offset(start, kind.dtype, at))

    def _add_to_part(self, member: Member, value: LaneValue, point: NestPoint) -> None:
        part, _ = self._part_of(point.row)
        start = self._part_place(member, part, max(prod(member.kept_axes), 1))
        pointer = self._place(member.part, point, start)
        old = self._code.load(pointer, value.kind, point.mask)
        total = call_function(self._code, "add", [old, value])
        self._code.store(total, pointer, point.mask)
