"""A tile of a matrix product in AMX-BF16: 32 rows by 32 columns, of which sums are in 4 registers.

A register has 16 rows of 64 bytes. Those of A and B have 32 numbers of k, in pairs: A's as packed
here, [steps of 32 numbers, 32 rows, 16 pairs], B's as in a panel, [pairs, columns]. A ragged tile
computes all sums, in memory of its own, and copies those of the matrix.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18
"""

from collections.abc import Iterator, Sequence

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.product_lanes import LaneReader
from csrun.executable.products import Tile

_ROWS, _LANES = 16, 16  # of a register
_STEP = 2 * _LANES  # numbers of k in a register
_HALVES = (0, 1)  # registers of rows, and of columns
_PALETTE, _REGISTERS = 1, 8
_FLOATS = Kind("float32", _LANES)


def _configuration() -> str:
    """All registers in full size: their bytes in a row are words from 16 on, rows bytes from 48."""
    text = bytearray(64)
    text[0] = _PALETTE
    text[16 : 16 + 2 * _REGISTERS : 2] = bytes([4 * _LANES] * _REGISTERS)
    text[48 : 48 + _REGISTERS] = bytes([_ROWS] * _REGISTERS)
    numbers = ", ".join(f"i8 {each}" for each in text)
    return f"@amx.configuration = internal constant [64 x i8] [{numbers}], align 64"


CONFIGURATION = _configuration()


def configure(code: Code) -> None:
    """Give the registers of the calling thread their size."""
    code.effect("llvm.x86.ldtilecfg", "ptr", "ptr @amx.configuration")


def release(code: Code) -> None:
    """Release the tile registers, so that the kernel need not save them for the thread."""
    code.effect("llvm.x86.tilerelease", "")


class AmxTileWriter:
    """Writes the function of a tile, for one or two registers of columns."""

    def __init__(self, tile: Tile, vectors: int) -> None:
        self._tile, self._vectors = tile, vectors
        self._width = vectors * _LANES
        self._sums = [(r, v) for r in _HALVES for v in range(vectors)]

    def write(self, code: Code) -> None:
        """C[rows, columns] = (adds ? C : 0) + A B, for k that are one block."""
        self._code = code
        rows, columns = LaneValue("%rows", INDEX), LaneValue("%columns", INDEX)
        adds = code.compare("ne", LaneValue("%adds", INDEX), index(0))
        has_rows = code.compare("eq", rows, index(self._tile.rows))
        has_columns = code.compare("eq", columns, index(self._width))
        is_full = code.op("and", has_rows, has_columns)
        is_ragged = code.op("xor", is_full, code.constant(1, is_full.kind))
        own = code.new_name("%sums")
        code.entry.append(f"  {own} = alloca [{self._tile.rows * self._width} x float], align 64")
        with code.when(code.op("and", is_ragged, adds)):
            self._copy("%c", LaneValue("%c_row", INDEX), own, index(self._width))
        c = code.make(INDEX, f"select {is_full}, ptr %c, ptr {own}").text
        c_row = code.select(is_full, LaneValue("%c_row", INDEX), index(self._width))
        places = [self._place(c, c_row, *each) for each in self._sums]
        for register in range(len(places)):
            code.effect("llvm.x86.tilezero", "i8 immarg", f"i8 {register}")
        with code.when(adds):
            self._move("tileloadd64", places, c_row)
        self._multiply()
        self._move("tilestored64", places, c_row)
        with code.when(is_ragged):
            self._copy(own, index(self._width), "%c", LaneValue("%c_row", INDEX))

    def _place(self, c: str, c_row: LaneValue, half: int, vector: int) -> str:
        below = self._code.op("mul", c_row, index(half * _ROWS))
        return self._code.offset(
            self._code.offset(c, "float32", below), "float32", index(vector * _LANES)
        )

    def _move(self, how: str, places: Sequence[str], row: LaneValue) -> None:
        nbytes = self._code.op("mul", row, index(4))
        for register, place in enumerate(places):
            self._register(how, register, place, nbytes)

    def _register(self, how: str, register: int, place: str, row_bytes: LaneValue) -> None:
        operands = (f"i8 {register}", f"ptr {place}", row_bytes)
        self._code.effect(f"llvm.x86.{how}", "i8 immarg, ptr, i64", *operands)

    def _multiply(self) -> None:
        code, columns = self._code, self._tile.columns
        of_a = len(self._sums)  # the registers after the sums: of A, then of B
        of_b = of_a + len(_HALVES)
        with code.loop(index(0), LaneValue("%k", INDEX), _LANES) as lane:
            a = code.offset("%a", "float32", code.op("mul", lane, LaneValue("%a_k", INDEX)))
            b = code.offset("%b", "float32", code.op("mul", lane, index(columns)))
            for v in range(self._vectors):
                place = code.offset(b, "float32", index(v * _LANES))
                self._register("tileloadd64", of_b + v, place, index(4 * columns))
            for r in _HALVES:
                place = code.offset(a, "float32", index(r * _ROWS * _LANES))
                self._register("tileloadd64", of_a + r, place, index(4 * _LANES))
                for v in range(self._vectors):
                    registers = (self._sums.index((r, v)), of_a + r, of_b + v)
                    operands = [f"i8 {n}" for n in registers]
                    code.effect("llvm.x86.tdpbf16ps", ", ".join(["i8 immarg"] * 3), *operands)

    def _copy(self, source: str, from_row: LaneValue, target: str, to_row: LaneValue) -> None:
        """The rows and columns that the matrix has."""
        code, columns = self._code, LaneValue("%columns", INDEX)
        with code.loop(index(0), LaneValue("%rows", INDEX)) as row:
            from_, to = (
                code.offset(place, "float32", code.op("mul", row, stride))
                for place, stride in ((source, from_row), (target, to_row))
            )
            for v in range(self._vectors):
                first = index(v * _LANES)
                mask = code.mask(code.op("sub", columns, first))
                value = code.load(code.offset(from_, "float32", first), _FLOATS, mask)
                code.store(value, code.offset(to, "float32", first), mask)


class RowWriter:
    """Writes the function that packs rows of A, with the parameters of one that packs columns."""

    def __init__(self, tile: Tile) -> None:
        self._rows = tile.rows
        self._n, self._k = LaneValue("%n", INDEX), LaneValue("%k", INDEX)
        self._a_k, self._a_row = LaneValue("%b_k", INDEX), LaneValue("%b_col", INDEX)

    def write(self, code: Code) -> None:
        """Rows of consecutive numbers are converted; others are transposed, 16 by 32 numbers."""
        self._code, self._lanes = code, LaneReader(code, 2, None)
        self._whole = code.op("and", self._k, index(-_STEP))
        up = code.op("and", code.op("add", self._k, index(_STEP - 1)), index(-_STEP))
        is_row = code.compare("eq", self._a_k, index(1))
        others = code.op("xor", is_row, code.constant(1, is_row.kind))
        is_column = code.op("and", others, code.compare("eq", self._a_row, index(1)))
        is_neither = code.op("xor", others, is_column)
        with code.loop(index(0), self._n, self._rows) as first:
            depth = code.op("udiv", up, index(2))
            target = code.offset("%packed", "float32", code.op("mul", first, depth))
            with code.when(is_row), code.loop(index(0), index(self._rows)) as row:
                self._convert(first, row, target)
            for condition, is_gathered in ((is_column, False), (is_neither, True)):
                with code.when(condition):
                    for half in _HALVES:
                        self._transpose(first, half, target, is_gathered)

    def _each_step(self) -> Iterator[tuple[LaneValue, LaneValue | None]]:
        """First numbers of steps, and for the last one that is not whole its numbers."""
        code = self._code
        with code.loop(index(0), self._whole, _STEP) as step:
            yield step, None
        rest = code.op("sub", self._k, self._whole)
        with code.when(code.compare("sgt", rest, index(0))):
            yield self._whole, rest

    def _target(self, target: str, step: LaneValue, row: LaneValue) -> str:
        code = self._code
        lanes = code.op("mul", step, index(self._rows // 2))
        place = code.offset(target, "float32", lanes)
        return code.offset(place, "float32", code.op("mul", row, index(_LANES)))

    def _convert(self, first: LaneValue, row: LaneValue, target: str) -> None:
        code = self._code
        last = code.op("sub", self._n, index(1))
        at = code.call("smin", code.op("add", first, row), last)
        source = code.offset("%b", "float32", code.op("mul", at, self._a_row))
        for step, rest in self._each_step():
            place = code.offset(source, "float32", step)
            lanes = self._lanes.along(place, _LANES, rest)
            code.store(lanes, self._target(target, step, row))

    def _transpose(self, first: LaneValue, half: int, target: str, is_gathered: bool) -> None:
        """16 rows: vectors of them for pairs of k become rows of pairs."""
        code = self._code
        start = code.op("add", first, index(half * _ROWS))
        count = code.op("sub", self._n, start)
        with code.when(code.compare("sgt", count, index(0))):
            mask = code.mask(count)
            for step, rest in self._each_step():
                found = []
                for lane in range(_LANES):
                    numbers = [code.op("add", step, index(2 * lane + n)) for n in range(2)]
                    pair = [
                        self._column(start, number, mask, rest, is_gathered) for number in numbers
                    ]
                    found.append(self._lanes.paired(*pair))
                for row, lanes in enumerate(_transposed(code, found)):
                    code.store(lanes, self._target(target, step, index(half * _ROWS + row)))

    def _column(
        self,
        start: LaneValue,
        number: LaneValue,
        mask: LaneValue,
        rest: LaneValue | None,
        is_gathered: bool,
    ) -> LaneValue:
        """A number of k of 16 rows; zeros for rows, and numbers, that there are not."""
        code = self._code
        if rest is not None:
            has = code.compare("slt", number, self._k)
            mask = code.op("and", mask, code.splat(has, _LANES))
        place = code.offset("%b", "float32", code.op("mul", number, self._a_k))
        place = code.offset(place, "float32", code.op("mul", start, self._a_row))
        if not is_gathered:
            return code.load(place, _FLOATS, mask)
        places = code.op("mul", code.lane_numbers(), code.splat(self._a_row, _LANES))
        return code.gather_at(place, _FLOATS, places, mask)


def _transposed(code: Code, rows: Sequence[LaneValue]) -> list[LaneValue]:
    """16 vectors of 16 lanes: blocks of 8 rows and lanes change places, then those of 4, 2, 1."""
    found = list(rows)
    size = len(found)
    while size := size // 2:
        low = [n if not n & size else n - size + len(found) for n in range(len(found))]
        high = [n + size if not n & size else n + len(found) for n in range(len(found))]
        for n in range(len(found)):
            if not n & size:
                pair = found[n], found[n + size]
                found[n], found[n + size] = (code.shuffle(*pair, each) for each in (low, high))
    return found
