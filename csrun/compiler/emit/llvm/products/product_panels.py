"""Packing of a matrix [k, n] with any strides into consecutive panels [k, columns].

The last panel is padded with columns of zeros. A panel consists of lanes (`product_lanes.py`); of
pairs it has half the rows. For a tile that multiplies several lanes of k at a time, it is padded
with rows of zeros to a multiple of them.

"""

from collections.abc import Iterator

from csrun.base.half_formats import WORD, HalfFormat
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.product_lanes import LaneReader
from csrun.executable.products import Tile

_GROUP = 96  # columns packed together: more panels would compete for the same cache sets
_AHEAD = 4  # rows prefetched: the hardware prefetcher does not cross pages
_FLOAT, _QUARTER, _VECTOR = Kind("float32"), Kind("float32", 4), Kind("float32", 8)
# Shuffles that transpose 4 by 4 numbers in each half of 4 vectors.
_LOW_PAIRS, _HIGH_PAIRS = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
_LOW_HALVES, _HIGH_HALVES = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)


class PanelWriter:
    """Writer of the function that packs panels of this many columns.

    tile: tile that multiplies the panels. half: 16-bit format of a matrix of words.
    """

    def __init__(self, columns: int, tile: Tile, half: HalfFormat | None = None) -> None:
        self._columns, self._half = columns, half
        self._numbers, self._unit = tile.numbers, tile.step
        self._dtype = "float32" if half is None else WORD  # of the matrix
        self._n, self._k = LaneValue("%n", INDEX), LaneValue("%k", INDEX)
        self._b_k, self._b_col = LaneValue("%b_k", INDEX), LaneValue("%b_col", INDEX)

    def write(self, code: Code) -> None:
        """Write the function, which copies contiguous rows and packs other matrices by panel."""
        self._code = code
        self._lanes = LaneReader(code, self._numbers, self._half)
        # Lanes with all of their numbers, lanes with any, and lanes of a panel.
        self._whole = self._lanes_of_k = self._k
        if self._numbers > 1:
            self._whole = code.op("udiv", self._k, index(self._numbers))
            up = code.op("add", self._k, index(self._numbers - 1))
            self._lanes_of_k = code.op("udiv", up, index(self._numbers))
        self._depth = self._lanes_of_k
        if self._unit > 1:
            up = code.op("add", self._lanes_of_k, index(self._unit - 1))
            self._depth = code.op("and", up, index(-self._unit))
        is_row = code.compare("eq", self._b_col, index(1))
        with code.when(is_row):
            self._copy_rows()
        with (
            code.when(code.op("xor", is_row, code.constant(1, is_row.kind))),
            code.loop(index(0), self._n, self._columns) as first,
        ):
            self._pack_panel(first)

    def _offset(
        self, pointer: str, *terms: tuple[LaneValue, LaneValue | int], dtype: str = "float32"
    ) -> str:
        """Return a pointer moved by indices with their strides."""
        for number, stride in terms:
            by = index(stride) if isinstance(stride, int) else stride
            elements = number if stride == 1 else self._code.op("mul", number, by)
            pointer = self._code.offset(pointer, dtype, elements)
        return pointer

    def _source(self, pointer: str, *terms: tuple[LaneValue, LaneValue | int]) -> str:
        """Return the address in the matrix."""
        return self._offset(pointer, *terms, dtype=self._dtype)

    def _each_step(self, first: LaneValue) -> Iterator[tuple[LaneValue, int]]:
        """Rows of lanes, and how many numbers they have: whole lanes, the last one, zeros."""
        code = self._code
        with code.loop(first, self._whole) as step:
            yield step, self._numbers
        if self._numbers > 1:
            with code.when(code.compare("slt", self._whole, self._lanes_of_k)):
                yield self._whole, 1
        if self._unit > 1:
            with code.loop(self._lanes_of_k, self._depth) as step:
                yield step, 0

    def _row(self, pointer: str, step: LaneValue) -> str:
        """Return the address of the first number of a row of lanes."""
        return self._source(pointer, (self._code.op("mul", step, index(self._numbers)), self._b_k))

    def _load(
        self, pointer: str, numbers: int, kind: Kind, mask: LaneValue | None = None
    ) -> LaneValue:
        """Return the lanes of a row."""
        if not numbers:
            return self._code.constant(0.0, kind)
        rows = (pointer, *([self._source(pointer, (self._b_k, 1))] if numbers > 1 else []))
        return self._lanes.across(rows, kind, mask)

    def _target(self, first: LaneValue, step: LaneValue) -> str:
        """Return the address in the panel that begins at a column."""
        return self._offset("%packed", (first, self._depth), (step, self._columns))

    def _copy_rows(self) -> None:
        code, kind = self._code, Kind("float32", self._columns)
        rest = code.op("urem", self._n, index(self._columns))
        full = code.op("sub", self._n, rest)
        with code.loop(index(0), full, _GROUP) as start:
            stop = code.call("smin", code.op("add", start, index(_GROUP)), full)
            for step, numbers in self._each_step(index(0)):
                row = self._row("%b", step)
                ahead = self._source(row, (code.op("mul", self._b_k, index(_AHEAD)), 1))
                with code.loop(start, stop, self._columns) as first:
                    code.prefetch(self._source(ahead, (first, 1)))
                    target = self._target(first, step)
                    beyond = code.offset(target, "float32", index(_AHEAD * self._columns))
                    code.prefetch(beyond, writes=True)
                    code.store(self._load(self._source(row, (first, 1)), numbers, kind), target)
        with code.when(code.compare("ne", rest, index(0))):
            mask = self._code.mask(rest, self._columns)
            for step, numbers in self._each_step(index(0)):
                row = self._row(self._source("%b", (full, 1)), step)
                code.store(self._load(row, numbers, kind, mask), self._target(full, step))

    def _pack_panel(self, first: LaneValue) -> None:
        code = self._code
        columns = code.call("smin", code.op("sub", self._n, first), index(self._columns))
        source = self._source("%b", (first, self._b_col))
        done = code.slot(index(0))
        with code.when(code.compare("eq", self._b_k, index(1))):
            full = code.op("and", self._whole, index(-_QUARTER.lanes))
            whole = self._columns // _VECTOR.lanes * _VECTOR.lanes
            if whole:
                with code.loop(index(0), index(whole), _VECTOR.lanes) as group:
                    self._transpose_columns((source, columns), first, (group, _VECTOR.lanes), full)
            if rest := self._columns - whole:
                self._transpose_columns((source, columns), first, (index(whole), rest), full)
            code.set(done, full)
        for step, numbers in self._each_step(code.get(done, INDEX)):
            with code.loop(index(0), index(self._columns)) as column:
                found = self._load(
                    self._row(self._column(source, columns, column), step), numbers, _FLOAT
                )
                is_column = code.compare("slt", column, columns)
                value = code.select(is_column, found, code.constant(0.0, _FLOAT))
                code.store(value, self._offset(self._target(first, step), (column, 1)))

    def _column(self, source: str, columns: LaneValue, column: LaneValue) -> str:
        """Return the address of a column of a panel, clamped to the last one."""
        last = self._code.op("sub", columns, index(1))
        return self._source(source, (self._code.call("smin", column, last), self._b_col))

    def _transpose_columns(
        self,
        panel: tuple[str, LaneValue],
        first: LaneValue,
        group: tuple[LaneValue, int],
        full: LaneValue,
    ) -> None:
        """Pack a group of columns of a panel, four numbers of each at a time."""
        code, (source, columns), (start, lanes) = self._code, panel, group
        kind = Kind("float32", lanes)
        numbers = [index(min(n, lanes - 1)) for n in range(_VECTOR.lanes)]
        pointers = [self._column(source, columns, code.op("add", start, n)) for n in numbers]
        mask = self._code.mask(code.op("sub", columns, start), lanes)
        with code.loop(index(0), full, _QUARTER.lanes) as step:
            start_k = code.op("mul", step, index(self._numbers))
            parts = [
                self._lanes.along(self._source(p, (start_k, 1)), _QUARTER.lanes) for p in pointers
            ]
            target = self._offset(self._target(first, step), (start, 1))
            for n, row in enumerate(self._transposed(parts)):
                kept = self._code.shuffle(row, row, range(kind.lanes))
                zero = code.constant(0.0, kind)
                place = self._offset(target, (index(n * self._columns), 1))
                code.store(code.select(mask, kept, zero), place)

    def _transposed(self, parts: list[LaneValue]) -> list[LaneValue]:
        """Join eight vectors of 4 into four vectors of 8."""
        both = [self._code.shuffle(low, parts[n + 4], range(8)) for n, low in enumerate(parts[:4])]
        pairs = [
            self._code.shuffle(both[n], both[n + 1], places)
            for places in (_LOW_PAIRS, _HIGH_PAIRS)
            for n in (0, 2)
        ]
        return [
            self._code.shuffle(pairs[n], pairs[n + 1], places)
            for n in (0, 2)
            for places in (_LOW_HALVES, _HIGH_HALVES)
        ]
