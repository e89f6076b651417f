"""A `lair` kernel as one loop over tiles of rows: locations of its values, and its calls."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Self

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import BlockArgument, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineDimExpr, AffineMap

from csrun.base.identifier import identifier
from csrun.cirh.ops.base import plain
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Name
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair import operators, rows
from csrun.compiler.lair.formula_trace import is_ufunc
from csrun.compiler.lair.functions import FORMULAS, Extra, NumpyCalls, call_of, calls_of
from csrun.compiler.lair.kernel_function import KernelFunction
from csrun.compiler.lair.scratch import ScratchNames
from csrun.compiler.lair.text import Line, LoopText, TilePlace
from csrun.executable import nbytes_of

#: Size of a tile of all arrays of a loop: about the cache of one core. Measured on a core with
#: 1 MiB of L2: half and twice as much are as fast, an eighth is as slow as no tiling.
TILE_BYTES = 1 << 20
FLOATS = ("float32", "float64")


class KernelLoop:
    """NumPy calls of a `lair.kernel`, and their scratch arrays.

    A value that nothing outside reads gets a scratch array, which the next value of its shape
    reuses after its last read.
    """

    def __init__(self, op: lair.KernelOp, writes: Mapping[str, Array]) -> None:
        self.op = op
        self.writes = writes
        self.rows: int = op.rows.value.data
        self.name = op.symbol.data
        self.operators = tuple(text.data for text in op.operators)
        self._body = list(op.body.block.ops)
        self._targets = {
            w.value: writes[w.symbol.data] for w in self._body if isinstance(w, lair.WriteOp)
        }
        self._last_use = {
            operand: step for step, o in enumerate(self._body) for operand in o.operands
        }
        self._places: dict[SSAValue, TilePlace] = {}
        self._scratch = ScratchNames(self.name, self.rows)
        self._tiled: dict[Array, None] = {}
        self._lines: list[Line] = []
        self._until: defaultdict[str, int] = defaultdict(int)  # of a scratch tile: its last reader
        self._read_until: defaultdict[str, int] = defaultdict(lambda: -1)
        for read in self._body:
            if isinstance(read, lair.ReadOp):
                name = read.array.name
                self._read_until[name] = max(self._read_until[name], self._last_use[read.out])
        self._ahead_of: set[str] = set()  # arrays that hold another value first
        self._sums: list[Array] = []
        self._added_up: set[Array] = set()  # partial sums, not needed by a single tile
        self._needs_special = False
        self.flops = 0
        for step, o in enumerate(self._body):
            if isinstance(o, lair.GenericOp):
                self._lower(o, step)
            elif isinstance(o, lair.ViewOp):
                self._put(o.out, self._viewed(o))
        self.tile = self._tile()
        op.properties["tile"] = IntegerAttr(self.tile, i64)
        self.text = LoopText(
            "tiles",
            self.rows,
            self.tile,
            tuple(self._lines),
            tuple(self._tiled),
            tuple(self._scratch.tiles.values()),
            self._scratch.fixed,
            tuple(self._sums),
            self._scratch.constants,
            self._needs_special,
        )
        self._function = KernelFunction(_stem_of(op), self.text, op.numbers)

    @property
    def function(self) -> KernelFunction:
        """The function of the program that computes it."""
        return self._function

    def with_function(self, function: KernelFunction) -> Self:
        """Return the loop, computed by another function."""
        self._function, self.text = function, function.text
        return self

    def prepare(self, name: Name) -> list[str]:
        """Return the line that binds its arrays."""
        return self._function.prepare(self.name, name)

    def emit(self, name: Name) -> list[str]:
        """Return the call."""
        return self._function.emit(self.name, name)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return scratch arrays, with a tile's rows."""
        tiles = (self.text.sized(array) for array in self._scratch.tiles.values())
        many = self.text.is_cut
        parts = (a for a in self._scratch.parts.values() if many or a not in self._added_up)
        return (*tiles, *parts)

    # Placement of each operator.

    def _lower(self, op: lair.GenericOp, step: int) -> None:
        maps = [m.data for m in op.maps]
        call = _call(op)
        operands = [self._operand(value, m) for value, m in zip(op.ins, maps, strict=False)]
        args: list[TilePlace | str] = [
            operands[value.index] if isinstance(value, BlockArgument) else _text(value)
            for value in call.args
        ]
        summed = [d for d, kind in enumerate(op.iterators) if kind == lair.REDUCTION]
        function = call.function.data
        self._count(op, call, summed=bool(summed))
        dying = self._dying(op, step)
        out = self._result(op, maps[-1], dying, step)
        match function:
            case operators.LARGEST:
                self._needs_special = True
                self._lines += rows.largest(args[0], out, self._scratch)
            case operators.PICK:
                self._lines += rows.pick(args[0], args[1], out, self._scratch)
            case operators.OF_LABEL:
                share = float(_options(call)["share"])
                self._lines += rows.of_label(share, args, out, self._scratch)
            case operators.IDENTITY if summed:
                self._sum(op, args[0], out, tuple(summed), len(maps[-1].results))
            case operators.IDENTITY:
                is_bool = out.array.dtype == "bool"  # the text of a number has another type
                how = ', casting="unsafe"' if is_bool else ""
                self._add(f"copyto({{0}}, {{1}}{how})", out, args[0])
            case operators.CAST:
                self._add('copyto({0}, {1}, casting="unsafe")', out, args[0])
            case _:
                self._compute(_calls(call), args, out)
        self._scratch.free_unread(*dying)

    def _count(self, op: lair.GenericOp, call: lair.ScalarOp, *, summed: bool) -> None:
        is_copy = call.function.data == operators.IDENTITY and not summed
        each = _calls(call).flops if _has_calls(call) else int(not is_copy)
        self.flops += each * prod(shape_of(type_of(op.ins[0] if summed else op.out)))

    def _sum(
        self,
        op: lair.GenericOp,
        x: TilePlace | str,
        out: TilePlace,
        axes: tuple[int, ...],
        rank: int,
    ) -> None:
        space, keeps = shape_of(type_of(op.ins[0])), rank == len(op.iterators)
        dtype = out.array.dtype
        text = f"add_reduce({{1}}, axis={axes}, keepdims={keeps}, out={{0}})"
        if out.tiled and 0 in axes:  # over the first axes of the rows: its own rows repeat
            self._sums.append(out.array)
            comes_once = out.array.shape[0] == self.rows  # a sum over axes of size 1
            self._add("copyto({0}, {1})" if comes_once else "add({0}, {1}, out={0})", out, x)
        elif 0 in axes:
            part = TilePlace(self._scratch.part(out.array.shape, dtype), tiled=False)
            self._added_up.add(part.array)
            ones: tuple[TilePlace, ...] = ()
            if axes == (0,) and len(space) == 2 and dtype in FLOATS and out.array.is_contiguous:
                ones = (self._scratch.fill(1, (), dtype),)
                text = f"dot({{2}}, {{1}}, out={{0}}{'[0]' if keeps else ''})"
            self._sums.append(out.array)
            self._lines.append(Line(text, (out, x, *ones), part))
        elif axes == (1,) and len(space) == 2 and dtype in FLOATS:
            of_row = self._scratch.ones(space[1], keeps, dtype)
            self._add(f"matmul({{1}}, {of_row}, out={{0}})", out, x)  # BLAS sums rows faster
        else:
            self._add(text, out, x)

    def _compute(self, calls: NumpyCalls, args: list[TilePlace | str], out: TilePlace) -> None:
        self._needs_special |= calls.needs_special
        filled = {
            n: self._filled(n, calls, args, out) for n in calls.arrays if isinstance(args[n], str)
        }
        args = [filled.get(number, arg) for number, arg in enumerate(args)]
        extras = [self._extra(kind, out) for kind in calls.extras]
        for line in calls.lines:
            self._add(line, *args, out, *extras)
        extras += [place for place in filled.values() if place != out]
        tiles = [place.array for place in extras if isinstance(place, TilePlace)]
        self._scratch.free_unread(*(array for array in tiles if array.name in self._scratch.tiles))

    def _filled(
        self, number: int, calls: NumpyCalls, args: Sequence[TilePlace | str], out: TilePlace
    ) -> TilePlace | str:
        """Return the array of an operand that is a number: the result's, if it may be filled with
        it.
        """
        is_free = number in calls.over and out not in args
        place = out if is_free else self._extra(Extra.ARRAY, out)
        self._add("copyto({0}, {1})", place, args[number])
        return place

    def _extra(self, kind: Extra, out: TilePlace) -> TilePlace | str:
        """Return a scratch array like the result's, or a constant of its type."""
        dtype, tail = out.array.dtype, out.array.shape[1:]
        match kind:
            case Extra.BITS:
                size = np.dtype(dtype).itemsize
                return self._scratch.constant(f"bits_{8 * size}", f"np.dtype('i{size}')")
            case Extra.ZEROS if out.tiled:
                return self._scratch.fill(0, tail, dtype)
            case Extra.ZERO | Extra.ZEROS:
                return self._scratch.constant(f"zero_{dtype}", f"np.zeros((), '{dtype}')")
        dtype = "bool" if kind is Extra.MASK else dtype
        if not out.tiled:
            return TilePlace(self._scratch.part(out.array.shape, dtype), tiled=False)
        return TilePlace(self._scratch.take(tail, dtype), tiled=True)

    def _add(self, text: str, *places: TilePlace | str) -> None:
        self._lines.append(Line(text, places))

    # Locations of values.

    def _operand(self, value: SSAValue, where: AffineMap) -> TilePlace:
        if not isinstance(value.owner, lair.ReadOp):
            return self._places[value]
        array = value.owner.array
        return self._of_program(array, _is_of_rows(where))

    def _of_program(self, array: Array, tiled: bool) -> TilePlace:
        if tiled:
            self._tiled[array] = None
        return TilePlace(array, tiled)

    def _viewed(self, op: lair.ViewOp) -> TilePlace:
        inner = self._places[op.value]
        return TilePlace(inner.array, inner.tiled, shape_of(type_of(op.out))[1:])

    def _result(
        self,
        op: lair.GenericOp,
        where: AffineMap,
        dying: list[Array],
        step: int,
    ) -> TilePlace:
        """Return the array that the operator writes; it overwrites an operand without later reads
        if possible.
        """
        shape, dtype = shape_of(type_of(op.out)), dtype_of(type_of(op.out))
        tiled = _is_of_rows(where)
        if op.out in self._targets:
            place = self._of_program(self._targets[op.out], tiled)
        elif not tiled:
            place = TilePlace(self._scratch.part(shape, dtype), tiled=False)
        else:
            over = self._writable(op, dying, (shape[1:], dtype))
            if over is not None:
                dying.remove(over)
            target = over or self._ahead(op, step) or self._scratch.take(shape[1:], dtype)
            place = TilePlace(target, tiled=True)
        self._put(op.out, place)
        return place

    def _ahead(self, op: lair.GenericOp, step: int) -> Array | None:
        """Return the array that the last of the operators that successively read a value will
        write.

        Only if it, and all values between, can be there until then.
        """
        chain: list[SSAValue] = [op.out]
        if lair.REDUCTION in op.iterators:
            return None
        while chain[-1] not in self._targets:
            reader = _reader_in_place(chain[-1])
            if reader is None:
                return None
            chain.append(reader.out)
        target = self._targets[chain[-1]]
        if self._read_until[target.name] > step or target.name in self._ahead_of:
            return None
        self._ahead_of.add(target.name)
        self._targets |= dict.fromkeys(chain, target)
        return target

    def _put(self, value: SSAValue, place: TilePlace) -> None:
        self._places[value] = place
        name = place.array.name
        self._until[name] = max(self._until[name], self._last_use.get(value, -1))

    def _writable(
        self,
        op: lair.GenericOp,
        dying: list[Array],
        like: tuple[tuple[int, ...], str],
    ) -> Array | None:
        """Return the operand that the result may overwrite; sums read their operand to the end."""
        if lair.REDUCTION in op.iterators:
            return None
        places = [self._places[value] for value in _over(op) if value in self._places]
        over = {place.array for place in places}
        fitting = [a for a in dying if a in over and (a.shape[1:], a.dtype) == like]
        return next(iter(fitting), None)

    def _dying(self, op: lair.GenericOp, step: int) -> list[Array]:
        """Return the scratch tiles whose last reader is this operator."""
        arrays: dict[str, Array] = {}
        for value in op.ins:
            place = self._places.get(value)
            if place is None or place.array.name not in self._scratch.tiles:
                continue
            if self._until[place.array.name] <= step:
                arrays[place.array.name] = place.array
        return list(arrays.values())

    def _tile(self) -> int:
        """Return the rows of a tile: as many as fit, in equal tiles except the last; a single pass
        takes all.
        """
        span = min([self.rows, *(array.shape[0] for array in self._tiled)])
        tiles = (*self._tiled, *self._scratch.tiles.values(), *self._scratch.fixed)
        row = sum(nbytes_of(array.shape[1:], array.dtype) for array in tiles)
        is_one_pass = len(self._lines) == 1 and all(
            len(array.shape) == 1 for array in self._scratch.fixed
        )
        if not row or not span or is_one_pass:
            return span
        count = -(-span // max(TILE_BYTES // row, 1))
        return -(-span // count)


def _stem_of(op: lair.KernelOp) -> str:
    """Return the stem of a function's name: its first and last operators, or the end of the
    kernel's name.
    """
    names = [text.data.removeprefix("cirh.").split("/")[-2:] for text in op.operators]
    words = dict.fromkeys((*names[0], *names[-1]))
    return identifier(re.sub(r"\W+", "_", "_".join(words)).strip("_"))


def _call(op: lair.GenericOp) -> lair.ScalarOp:
    """Return the function of an operator's body."""
    return next(o for o in op.body.block.ops if isinstance(o, lair.ScalarOp))


def _options(call: lair.ScalarOp) -> dict[str, float | str]:
    found = {name: plain(value) for name, value in call.options.data.items()}
    return {name: value for name, value in found.items() if value is not None}


def _has_calls(call: lair.ScalarOp) -> bool:
    function = call.function.data
    return function in FORMULAS or is_ufunc(function)


def _calls(call: lair.ScalarOp) -> NumpyCalls:
    """Return the NumPy calls of a formula, or of a ufunc."""
    function = call.function.data
    if function in FORMULAS:
        return calls_of(function, tuple(_options(call).items()))
    return call_of(function, len(call.args))


def _over(op: lair.GenericOp) -> list[SSAValue]:
    """Return the arrays that the result may overwrite, element by element."""
    call = _call(op)
    over = _calls(call).over if _has_calls(call) else (0,)
    args = [call.args[number] for number in over]
    return [op.ins[arg.index] for arg in args if isinstance(arg, BlockArgument)]


def _reader_in_place(value: SSAValue) -> lair.GenericOp | None:
    """Return the only operator that reads a value, if its result may overwrite it."""
    uses = list(value.uses)
    reader = uses[0].operation if len(uses) == 1 else None
    if not isinstance(reader, lair.GenericOp) or reader.out.type != value.type:
        return None
    return reader if value in _over(reader) and lair.REDUCTION not in reader.iterators else None


def _is_of_rows(where: AffineMap) -> bool:
    """Return whether axis 0 of a map's result is the rows, or rows that repeat."""
    first = where.results[0] if where.results else None
    if isinstance(first, AffineBinaryOpExpr):
        first = first.lhs
    return first == AffineDimExpr(0)


def _text(value: SSAValue) -> str:
    assert isinstance(value.owner, lair.NumberOp), "a body's operands are arguments and numbers"
    return value.owner.text.data
