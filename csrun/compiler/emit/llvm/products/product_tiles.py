"""Tile of a matrix product, whose sums stay in registers for all k.

A tile of R rows is computed from rows of A with any strides and a packed panel of B, [k, columns].
For a tile of pairs both consist of lanes of pairs, and k counts lanes.
A ragged tile computes all of its sums, from existing rows, and stores those inside the matrix.


Source: Van Zee and van de Geijn 2015, BLIS
"""

from itertools import product

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.executable.products import Tile

_FLOAT = Kind("float32")
#: Adds the product of the upper halves of each lane, rounds, then adds that of the lower halves.
_MULTIPLY_PAIRS = "llvm.x86.avx512bf16.dpbf16ps.512"


class TileWriter:
    """Writer of the function of a tile with one or both vectors of a row."""

    def __init__(self, tile: Tile, vectors: int) -> None:
        self._tile = tile
        self._vectors = vectors
        self._kind = Kind("float32", tile.lanes)
        self._width = vectors * tile.lanes
        self._adds = LaneValue("%adds", INDEX)

    def write(self, code: Code) -> None:
        """Write C[rows, columns] = (adds ? C : 0) + A B for one block of k."""
        self._code = code
        self._find_a()
        self._c = [self._row("%c", "%c_row", index(r)) for r in self._rows]
        for pointer in self._c:
            code.prefetch(pointer, writes=True)
        zero = code.constant(0.0, self._kind)
        self._sums = {place: code.slot(zero) for place in product(self._rows, range(self._vectors))}
        self._sum_up()
        self._store()

    @property
    def _rows(self) -> range:
        return range(self._tile.rows)

    @property
    def _count(self) -> LaneValue:
        """Return the number of rows inside the matrix."""
        return LaneValue("%rows", INDEX)

    def _row(self, base: str, stride: str, row: LaneValue) -> str:
        if row.text == "0":
            return base
        elements = self._code.op("mul", row, LaneValue(stride, INDEX))
        return self._code.offset(base, "float32", elements)

    def _find_a(self) -> None:
        """Compute the addresses of the rows of A, clamped to the last one."""
        last = self._code.op("sub", self._count, index(1))
        rows = (self._code.call("smin", index(r), last) for r in self._rows)
        self._a = [self._row("%a", "%a_row", row) for row in rows]

    def _row_of_a(self, number: int, place: LaneValue) -> str:
        """Return the address of a number of a row."""
        return self._code.offset(self._a[number], "float32", place)

    def _sum_up(self) -> None:
        code, columns = self._code, self._tile.columns
        at = code.slot(index(0))  # elements from the first number of a row of A
        with code.loop(index(0), LaneValue("%k", INDEX)) as step:
            panel = code.offset("%b", "float32", code.op("mul", step, index(columns)))
            b = [
                code.load(self._place(panel, vector), self._kind) for vector in range(self._vectors)
            ]
            place = code.get(at, INDEX)
            code.set(at, code.op("add", place, LaneValue("%a_k", INDEX)))
            ahead = code.op("mul", step, LaneValue("%next_step", INDEX))
            code.prefetch(code.offset("%next", "int8", ahead))
            for r in self._rows:
                number = code.load(self._row_of_a(r, place), _FLOAT)
                a = code.splat(number, self._tile.lanes)
                for v, of_b in enumerate(b):
                    total = code.get(self._sums[r, v], self._kind)
                    code.set(self._sums[r, v], self._multiply_add(a, of_b, total))

    def _multiply_add(self, a: LaneValue, b: LaneValue, total: LaneValue) -> LaneValue:
        code = self._code
        if self._tile.numbers == 1:
            return code.call("fma", a, b, total)
        kind = Kind("bfloat16", 2 * self._tile.lanes)
        pairs = [code.make(kind, f"bitcast {each} to {kind.ir}") for each in (a, b)]
        return code.call_typed(_MULTIPLY_PAIRS, total.kind, [total, *pairs])

    # Results.

    def _store(self) -> None:
        code = self._code
        rows, columns = self._count, LaneValue("%columns", INDEX)
        has_rows = code.compare("eq", rows, index(len(self._rows)))
        has_columns = code.compare("eq", columns, index(self._width))
        is_full = code.op("and", has_rows, has_columns)
        adds = code.compare("ne", self._adds, index(0))
        with code.when(code.op("and", is_full, adds)):
            for (r, v), slot in self._sums.items():
                old = code.load(self._place(self._c[r], v), self._kind)
                code.set(slot, code.op("fadd", old, code.get(slot, self._kind)))
        with code.when(is_full):
            for (r, v), slot in self._sums.items():
                code.store(code.get(slot, self._kind), self._place(self._c[r], v))
        with code.when(code.op("xor", is_full, code.constant(1, is_full.kind))):
            self._store_ragged(rows, columns, adds)

    def _place(self, row: str, vector: int) -> str:
        return self._code.offset(row, "float32", index(vector * self._tile.lanes))

    def _store_ragged(self, rows: LaneValue, columns: LaneValue, adds: LaneValue) -> None:
        """Copy the sums of the matrix from memory, columns in pieces of 2 ** n."""
        code = self._code
        sums = code.new_name("%sums")
        count = len(self._rows) * self._width
        code.entry.append(f"  {sums} = alloca [{count} x float], align 64")
        for (r, v), slot in self._sums.items():
            source = code.offset(sums, "float32", index(r * self._width))
            code.store(code.get(slot, self._kind), self._place(source, v))
        size = self._width
        while size:
            piece = code.op("and", columns, index(size))
            with code.when(code.compare("ne", piece, index(0))):
                # The larger pieces are before it.
                at = code.op("and", columns, index(-2 * size))
                with code.loop(index(0), rows) as row:
                    source = code.offset(sums, "float32", code.op("mul", row, index(self._width)))
                    target = self._row("%c", "%c_row", row)
                    self._copy_piece(source, target, at, Kind("float32", size), adds)
            size //= 2

    def _copy_piece(
        self, source: str, target: str, at: LaneValue, kind: Kind, adds: LaneValue
    ) -> None:
        code = self._code
        place = code.offset(target, "float32", at)
        value = code.load(code.offset(source, "float32", at), kind)
        added = code.op("fadd", code.load(place, kind), value)
        code.store(code.select(adds, added, value), place)


class TallTileWriter(TileWriter):
    """Writer of the function of two full tiles of one vector, one below the other.

    The rows of A of the second one begin %a_tile numbers after those of the first one.
    """

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile, vectors=1)

    @property
    def _rows(self) -> range:
        return range(2 * self._tile.rows)

    @property
    def _count(self) -> LaneValue:
        return index(len(self._rows))

    def _find_a(self) -> None:
        # Both tiles share two addresses and strides, because registers are scarce.
        second = self._code.offset("%a", "float32", LaneValue("%a_tile", INDEX))
        self._tiles = ("%a", second)
        step = LaneValue("%a_row", INDEX)
        self._steps = [self._code.op("mul", step, index(r)) for r in range(self._tile.rows)]

    def _row_of_a(self, number: int, place: LaneValue) -> str:
        tile, row = divmod(number, self._tile.rows)
        start = self._code.offset(self._tiles[tile], "float32", place)
        return self._code.offset(start, "float32", self._steps[row])
