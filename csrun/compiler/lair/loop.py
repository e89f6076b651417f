"""A kernel of `lair` as NumPy calls: one loop over tiles of rows that stay in the cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i64
from xdsl.ir import BlockArgument, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler.array import Array
from csrun.compiler.graph import INPUT
from csrun.compiler.kernels.activation import constants
from csrun.compiler.kernels.activation_code import CODES
from csrun.compiler.kernels.base import Name
from csrun.compiler.lair import dialect as lair
from csrun.compiler.lair.operators import CALLS, IDENTITY
from csrun.executable import nbytes_of


class Scratch:
    """Names scratch arrays after the kernel; a tile has all rows until the loop knows its own."""

    def __init__(self, kernel: str, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._free: list[Array] = []
        self.tiles: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}

    def take(self, tail: tuple[int, ...], dtype: str) -> Array:
        """A tile whose rows have this shape: one that is free, else a new one."""
        for array in self._free:
            if (array.shape[1:], array.dtype) == (tail, dtype):
                self._free.remove(array)
                return array
        array = Array(f"{self._kernel}/tile_{len(self.tiles)}", (self._rows, *tail), dtype)
        self.tiles[array.name] = array
        return array

    def give_back(self, *arrays: Array) -> None:
        """Tiles whose values nobody reads any more."""
        self._free += arrays

    def part(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array that is not of rows: for each tile anew."""
        array = Array(f"{self._kernel}/part_{len(self.parts)}", shape, dtype)
        self.parts[array.name] = array
        return array


#: What a tile of everything that a loop touches may take: about the cache of one core. Measured on
#: a core with 1 MiB of L2: half and twice as much are as fast, an eighth is as slow as no loop.
TILE_BYTES = 1 << 20
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class _Place:
    """Where a value is: an array of the program or a scratch array; all of it, or its tile."""

    array: Array
    tiled: bool
    shape: tuple[int, ...] | None = None  # of a view of the tile, without the rows


@dataclass(frozen=True)
class _Line:
    """A call, with places for the arrays; `adds`: into the first over all tiles, by the last."""

    text: str
    places: tuple[_Place | str, ...]
    adds: bool = False


class Loop:
    """The text of a `lair.kernel`, and the scratch arrays that it needs.

    A value that nobody else reads gets a scratch array, which the next value of its shape takes
    over when no operator reads it any more.
    """

    def __init__(self, op: lair.KernelOp, writes: Mapping[str, Array]) -> None:
        self.op = op
        self._writes = writes
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
        self._places: dict[SSAValue, _Place] = {}
        self._scratch = Scratch(self.name, self.rows)
        self._tiled: dict[Array, None] = {}
        self._lines: list[_Line] = []
        self._sums: list[Array] = []
        self._constants: dict[str, str] = {}
        self._needs_special = False
        self.flops = 0
        for step, o in enumerate(self._body):
            if isinstance(o, lair.GenericOp):
                self._lower(o, step)
            elif isinstance(o, lair.ViewOp):
                self._places[o.out] = self._viewed(o)
        self.tile = self._tile()
        op.properties["tile"] = IntegerAttr(self.tile, i64)
        self._many = self.tile < self.rows

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Scratch arrays, of a tile's rows."""
        tiles = (self._sized(array) for array in self._scratch.tiles.values())
        return (*tiles, *self._scratch.parts.values())

    # What each operator becomes.

    def _lower(self, op: lair.GenericOp, step: int) -> None:
        maps = [m.data for m in op.maps]
        *body, _ = op.body.block.ops
        call = next(o for o in body if isinstance(o, lair.ScalarOp))
        operands = [self._operand(value, m) for value, m in zip(op.ins, maps, strict=False)]
        args: list[_Place | str] = [
            operands[value.index] if isinstance(value, BlockArgument) else _text(value)
            for value in call.args
        ]
        summed = [d for d, kind in enumerate(op.iterators) if kind == lair.REDUCTION]
        function = call.function.data
        self._count(op, function, summed=bool(summed))
        dying = self._dying(op, step)
        out = self._result(op, maps[-1], function, dying)
        numbers = call.options.data.items()
        options = {k: v.value.data for k, v in numbers if isinstance(v, FloatAttr)}
        match function:
            case _ if summed:
                self._sum(op, args[0], out, tuple(summed), len(maps[-1].results))
            case _ if function == IDENTITY:
                self._add("copyto({0}, {1})", out, args[0])
            case _ if function in CALLS.values():
                places = ", ".join(f"{{{i + 1}}}" for i in range(len(args)))
                self._add(f"{function}({places}, out={{0}})", out, *args)
            case _:
                self._activation(function, options, args, out)
        self._scratch.give_back(*dying)

    def _count(self, op: lair.GenericOp, function: str, *, summed: bool) -> None:
        code = CODES.get(function)
        each = code.flops if code else int(function != IDENTITY or summed)
        self.flops += each * prod(shape_of(type_of(op.ins[0] if summed else op.out)))

    def _sum(
        self, op: lair.GenericOp, x: _Place | str, out: _Place, axes: tuple[int, ...], rank: int
    ) -> None:
        space, keeps = shape_of(type_of(op.ins[0])), rank == len(op.iterators)
        text = f"add_reduce({{1}}, axis={axes}, keepdims={keeps}, out={{0}})"
        if axes == (1,) and len(space) == 2 and out.array.dtype in FLOATS:
            ones = self._need_ones(space[1], keeps, out.array.dtype)
            self._add(f"matmul({{1}}, {ones}, out={{0}})", out, x)  # BLAS sums rows faster
        elif 0 not in axes:
            self._add(text, out, x)
        else:
            part = self._scratch.part(out.array.shape, out.array.dtype)
            self._sums.append(out.array)
            self._lines.append(_Line(text, (out, x, _Place(part, tiled=False)), adds=True))

    def _need_ones(self, count: int, as_column: bool, dtype: str) -> str:
        """The variable of so many ones."""
        shape = (count, 1) if as_column else (count,)
        variable = "_".join(["ones", *map(str, shape)])
        self._constants[variable] = f"np.ones({shape}, '{dtype}')"
        return variable

    def _activation(
        self, function: str, options: Mapping[str, float], args: list[_Place | str], out: _Place
    ) -> None:
        code = CODES[function]
        self._needs_special |= code.needs_special
        self._constants |= constants(out.array.dtype)
        operand = args[0]
        if len(args) > 1:  # backward texts change the gradient in place
            if operand != out:
                self._add("copyto({0}, {1})", out, operand)
            operands = [out, args[1]]
        else:
            operands = [operand, out]
        kinds = {"f": out.array.dtype, "b": "bool"}
        own = [self._beside(out, kinds[kind]) for kind in code.scratch]
        texts = [f"{{{i}}}" for i in range(len(operands) + len(own))]
        for line in code.text(options, *texts):
            self._add(line, *operands, *own)
        self._scratch.give_back(*(place.array for place in own if place.tiled))

    def _beside(self, out: _Place, dtype: str) -> _Place:
        """A scratch array like the result's."""
        if out.tiled:
            return _Place(self._scratch.take(out.array.shape[1:], dtype), tiled=True)
        return _Place(self._scratch.part(out.array.shape, dtype), tiled=False)

    def _add(self, text: str, *places: _Place | str) -> None:
        self._lines.append(_Line(text, places))

    # Where values are.

    def _operand(self, value: SSAValue, where: AffineMap) -> _Place:
        if not isinstance(value.owner, lair.ReadOp):
            return self._places[value]
        array = value.owner.array
        return self._of_program(array, _is_of_rows(where) and len(where.results) == where.num_dims)

    def _of_program(self, array: Array, tiled: bool) -> _Place:
        if tiled:
            self._tiled[array] = None
        return _Place(array, tiled)

    def _viewed(self, op: lair.ViewOp) -> _Place:
        inner = self._places[op.value]
        return _Place(inner.array, inner.tiled, shape_of(type_of(op.out))[1:])

    def _result(
        self, op: lair.GenericOp, where: AffineMap, function: str, dying: list[Array]
    ) -> _Place:
        """Where the operator writes; over an operand that nobody reads again, if it can."""
        shape, dtype = shape_of(type_of(op.out)), dtype_of(type_of(op.out))
        tiled = _is_of_rows(where)
        if op.out in self._targets:
            place = self._of_program(self._targets[op.out], tiled)
        elif not tiled:
            place = _Place(self._scratch.part(shape, dtype), tiled=False)
        else:
            over = self._writable(op, function, dying, (shape[1:], dtype))
            if over is not None:
                dying.remove(over)
            place = _Place(over or self._scratch.take(shape[1:], dtype), tiled=True)
        self._places[op.out] = place
        return place

    def _writable(
        self,
        op: lair.GenericOp,
        function: str,
        dying: list[Array],
        like: tuple[tuple[int, ...], str],
    ) -> Array | None:
        """The operand that the result may be written over.

        Sums read it to their end; backward texts may change the gradient, their first one, only.
        """
        if lair.REDUCTION in op.iterators:
            return None
        fitting = [a for a in dying if (a.shape[1:], a.dtype) == like]
        if "_backward" in function:
            gradient = self._places.get(op.ins[0])
            fitting = [a for a in fitting if gradient is not None and a == gradient.array]
        return next(iter(fitting), None)

    def _dying(self, op: lair.GenericOp, step: int) -> list[Array]:
        """Scratch tiles whose last reader is this operator."""
        arrays: dict[str, Array] = {}
        for value in op.ins:
            place = self._places.get(value)
            if place is None or place.array.name not in self._scratch.tiles:
                continue
            views = [v for v, p in self._places.items() if p.array == place.array]
            if all(self._last_use.get(view, -1) <= step for view in views):
                arrays[place.array.name] = place.array
        return list(arrays.values())

    # The tile, and the text.

    def _tile(self) -> int:
        """Rows a tile: as many as fit, all tiles alike but the last."""
        if not self.rows:
            return 0
        tiles = (*self._tiled, *self._scratch.tiles.values())
        row = sum(nbytes_of(array.shape[1:], array.dtype) for array in tiles)
        most = max(TILE_BYTES // row, 1) if row else self.rows
        count = -(-self.rows // most)
        return -(-self.rows // count)

    def _sized(self, array: Array) -> Array:
        """A scratch tile with the rows that it has in the end; another array as it is."""
        if array.name not in self._scratch.tiles:
            return array
        return Array(array.name, (self.tile, *array.shape[1:]), array.dtype)

    def prepare(self, name: Name) -> list[str]:
        """Lines that run once, when the program is bound."""
        lines = ["from csrun.executable import special"] if self._needs_special else []
        lines += [f"{variable} = {text}" for variable, text in self._constants.items()]
        if self._many:
            arrays = ", ".join(map(name, self._bound()))
            scratch = ", ".join(name(self._sized(a)) for a in self._scratch.tiles.values())
            pieces = f"row_tiles({self.rows}, {self.tile}, [{arrays}], [{scratch}])"
            lines.append(f"{self._pieces(name)} = {pieces}")
        return lines

    def emit(self, name: Name) -> list[str]:
        lines = [line for each in self._lines for line in self._line(each, name)]
        if not self._many:
            return lines
        tiles = (*self._bound(), *self._scratch.tiles.values())
        names = ", ".join(["rows", *(self._tile_name(array, name) for array in tiles)])
        inputs = [a for a in self._tiled if a.name.startswith(INPUT)]
        cut = [f"{self._tile_name(array, name)} = {name(array)}[rows]" for array in inputs]
        return [
            *(f"{name(array)}.fill(0)" for array in self._sums),
            f"for {names} in {self._pieces(name)}:",
            *(f"    {line}" for line in (*cut, *lines)),
        ]

    def _line(self, line: _Line, name: Name) -> list[str]:
        texts = [p if isinstance(p, str) else self._text(p, name) for p in line.places]
        if not line.adds or not self._many:
            return [line.text.format(*texts)]
        out, x, part = texts
        return [line.text.format(part, x), f"add({out}, {part}, out={out})"]

    def _text(self, place: _Place, name: Name) -> str:
        array = place.array
        text = (
            self._tile_name(array, name) if self._many and place.tiled else self._name(array, name)
        )
        return text if place.shape is None else f"{text}.reshape({(-1, *place.shape)})"

    def _bound(self) -> list[Array]:
        """Arrays whose tiles are known before a batch is there."""
        return [a for a in self._tiled if not a.name.startswith(INPUT)]

    def _name(self, array: Array, name: Name) -> str:
        return name(self._sized(array))

    def _tile_name(self, array: Array, name: Name) -> str:
        return f"{self._name(array, name)}_rows"

    def _pieces(self, name: Name) -> str:
        return f"{name(next(iter(self._writes.values())))}_tiles"


def _is_of_rows(where: AffineMap) -> bool:
    """Whether axis 0 of what a map gives is the rows."""
    return bool(where.results) and where.results[0] == AffineDimExpr(0)


def _text(value: SSAValue) -> str:
    assert isinstance(value.owner, lair.NumberOp), "a body's operands are arguments and numbers"
    return value.owner.text.data
