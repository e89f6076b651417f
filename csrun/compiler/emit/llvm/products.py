"""Products of matrices: packed panels, blocks of k, a tile in registers.

The sum of an element has one order: in each block of BLOCK_K numbers of k, from the first one on,
fused multiply-adds from 0; the sums of blocks are added in order, to C where `adds`. Sizes, chunks,
threads, tiles and vectors do not change it. A product with k = 0 leaves C as it is.

`product.pack_b` packs B [k, n]: for each block of k the panels of all columns, zeros after the last
one. `product.rows` is C[m, n] = (adds ? C : 0) + A B, of packed B, for any k; the columns of C are
consecutive. B and scratch are aligned to 64 bytes, and csrun/executable/products.py has the sizes
of scratch, and the words of the jobs `product.pack`, `product.multiply`, `product.share` and
`product.batch`.
`product.pack.words` packs a B of words of a 16-bit format, which it widens.

Functions of tiles of pairs are called `pairs.pack_b` and so on for AVX512-BF16, `amx.pack_b` and so
on for AMX-BF16 (`amx_tiles.py`). Their operands are numbers of bfloat16, in float32 or, of B, as
words; an operand or a sum below 2^-126 is zero to both. Otherwise AVX512-BF16's sums have the same
order and the same bits. AMX-BF16's have an order of their own: for each 32 numbers of k from the
first one on, fused multiply-adds from 0 of those with an even number and of those with an odd one,
and the sum of both is added to that of the numbers before, the first one to C where `adds`. The
functions name the instructions that they need, so an object for any CPU can have them; only a CPU
with these instructions calls them.

Source: Van Zee and van de Geijn 2015, BLIS
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csrun.base.half_formats import WORD, HalfFormat
from csrun.compiler.emit.llvm import amx_tiles
from csrun.compiler.emit.llvm.code import INDEX, Code, Kind, LaneValue, index
from csrun.compiler.emit.llvm.product_panels import PanelWriter
from csrun.compiler.emit.llvm.product_tiles import TileWriter
from csrun.executable.products import AMX_BF16, AVX512_BF16, BLOCK_K, BLOCK_ROWS, EXPORTED, Tile

#: For so few columns A is read as it is, if its rows are no longer than so many numbers: packing
#: would take longer than what it saves.
_DIRECT_COLUMNS, _DIRECT_SPAN = 128, 8192
#: Instructions of functions that only some CPUs call.
_FEATURES = {AVX512_BF16.prefix: "+avx512bf16", AMX_BF16.prefix: "+amx-tile,+amx-bf16"}
_JOB = "ptr arguments, i64 first, i64 last"
_PACK = "ptr b, i64 b_k, i64 b_col, i64 n, i64 k, ptr packed"
_ROWS = (
    "ptr a, i64 a_row, i64 a_k, ptr packed, ptr c, i64 c_row, "
    "i64 m, i64 n, i64 k, i64 adds, ptr scratch"
)
_PART = f"{_ROWS}, i64 column, i64 end"
_TILE = (
    "ptr a, i64 a_row, i64 a_k, ptr b, i64 k, ptr c, i64 c_row, "
    "i64 rows, i64 columns, i64 adds, ptr next, i64 next_step"
)


def _types(parameters: str) -> str:
    return ", ".join(each.split()[0] for each in parameters.split(","))


#: Functions that kernels call, each with its declaration.
CALLED = {
    name: f"declare void @{name}({_types(parameters)})"
    for name, parameters in zip(EXPORTED, (_PACK, _ROWS), strict=True)
}


@dataclass(frozen=True)
class ProductCode:
    """Functions of all products of a program, and the intrinsics that they call."""

    text: str
    declared: dict[str, str]


def product_code(tile: Tile, half: HalfFormat | None = None) -> ProductCode:
    """The functions, for tiles of this size; half: the format of words that B may be of."""
    panels, is_amx = PanelWriter(tile.columns, tile), tile is AMX_BF16
    pack_a = amx_tiles.RowWriter(tile) if is_amx else PanelWriter(tile.rows, tile)
    tile_writer = amx_tiles.AmxTileWriter if is_amx else TileWriter
    writers: list[tuple[str, str, Callable[[Code], None]]] = [
        ("internal pack_panels", _PACK, panels.write),
        ("internal pack_a", _PACK, pack_a.write),
        ("internal tile", _TILE, tile_writer(tile, vectors=2).write),
        ("internal half_tile", _TILE, tile_writer(tile, vectors=1).write),
        ("pack_b", _PACK, lambda code: _pack_b(code, tile)),
        ("internal part", _PART, lambda code: _PartWriter(code, tile).write()),
        ("rows", _ROWS, lambda code: _rows(code, tile)),
        ("pack", _JOB, lambda code: _pack(code, tile)),
        ("multiply", _JOB, lambda code: _multiply(code, tile)),
        ("share", _JOB, lambda code: _share(code, tile)),
        ("batch", _JOB, lambda code: _batch(code, tile)),
    ]
    if half is not None:
        of_words = PanelWriter(tile.columns, tile, half)
        writers += [
            ("internal pack_panels.words", _PACK, of_words.write),
            ("pack.words", _JOB, lambda code: _pack(code, tile, WORD)),
        ]
    declared: dict[str, str] = {}
    texts = [amx_tiles.CONFIGURATION] if is_amx else []
    for name, parameters, write in writers:
        code = Code()
        write(code)
        declared |= code.declared
        *linkage, own = name.split()
        head = " ".join(["define", *linkage, "void", f"@{tile.prefix}.{own}"])
        named = ", ".join(" %".join(each.split()) for each in parameters.split(","))
        lines = ["entry:", *code.entry, *code.lines, "  ret void", "}"]
        start = f"{head}({named}) noinline nounwind {_attributes(tile)} {{"
        texts.append("\n".join([start, *lines]))
    return ProductCode("\n\n".join(texts), declared)


def _attributes(tile: Tile) -> str:
    # LLVM would cut vectors of 16 lanes in halves for some CPUs, and keep no tile in registers.
    bits = f'"min-legal-vector-width"="{32 * tile.lanes}" "prefer-vector-width"="{32 * tile.lanes}"'
    if tile.prefix not in _FEATURES:
        return bits
    return f'{bits} "target-cpu"="x86-64-v4" "target-features"="{_FEATURES[tile.prefix]}"'


def _value(name: str) -> LaneValue:
    return LaneValue(f"%{name}", INDEX)


def _call(code: Code, function: str, parameters: str, *arguments: LaneValue | str) -> None:
    """Call a function with numbers and addresses, in the order of its parameters."""
    types = [each.split()[0] for each in parameters.split(",")]
    texts = [a if isinstance(a, str) else a.text for a in arguments]
    named = ", ".join(f"{kind} {text}" for kind, text in zip(types, texts, strict=True))
    code.lines.append(f"  call void @{function}({named})")


def _offset(
    code: Code, pointer: str, *terms: tuple[LaneValue, LaneValue], dtype: str = "float32"
) -> str:
    """An address, from numbers and their strides."""
    for number, stride in terms:
        pointer = code.offset(pointer, dtype, code.op("mul", number, stride))
    return pointer


def _at_most(code: Code, size: LaneValue, most: int) -> LaneValue:
    return code.call("smin", size, index(most))


def _padded(code: Code, columns: LaneValue, tile: Tile) -> LaneValue:
    """Columns of whole panels."""
    up = code.op("add", columns, index(tile.columns - 1))
    return code.op("and", up, index(-tile.columns))


def _depth(code: Code, k: LaneValue, tile: Tile) -> LaneValue:
    """Lanes of a panel for so many numbers of k."""
    unit = tile.numbers * tile.step
    if unit == 1:
        return k
    units = code.op("udiv", code.op("add", k, index(unit - 1)), index(unit))
    return code.op("mul", units, index(tile.step))


def _words(code: Code, count: int) -> list[LaneValue]:
    """Arguments of a job; addresses are numbers, too."""
    places = [code.offset("%arguments", "int64", index(n)) for n in range(count)]
    return [code.load(place, INDEX) for place in places]


def _address(code: Code, word: LaneValue) -> str:
    return code.make(INDEX, f"inttoptr {word} to ptr").text


# Packing B.


def _pack_b(code: Code, tile: Tile) -> None:
    n, k = _value("n"), _value("k")
    _pack_columns(
        code, tile, (index(0), n), n, k, ("%b", _value("b_k"), _value("b_col")), "%packed"
    )


def _pack(code: Code, tile: Tile, dtype: str = "float32") -> None:
    _, b, b_k, b_col, n, k, packed = _words(code, 7)
    bounds, b_place = (_value("first"), _value("last")), _address(code, b)
    _pack_columns(code, tile, bounds, n, k, (b_place, b_k, b_col), _address(code, packed), dtype)


def _pack_columns(
    code: Code,
    tile: Tile,
    bounds: tuple[LaneValue, LaneValue],
    n: LaneValue,
    k: LaneValue,
    b: tuple[str, LaneValue, LaneValue],
    packed: str,
    dtype: str = "float32",
) -> None:
    """Pack columns, of which the first one begins a panel, in all blocks of k."""
    (first, last), (pointer, b_k, b_col) = bounds, b
    padded, columns = _padded(code, n, tile), code.op("sub", last, first)
    with code.loop(index(0), k, BLOCK_K) as step:
        depth = _at_most(code, code.op("sub", k, step), BLOCK_K)
        source = _offset(code, pointer, (step, b_k), (first, b_col), dtype=dtype)
        before, lanes = (_depth(code, each, tile) for each in (step, depth))
        target = _offset(code, packed, (before, padded), (first, lanes))
        function = f"{tile.prefix}.pack_panels{'.words' if dtype == WORD else ''}"
        _call(code, function, _PACK, source, b_k, b_col, columns, depth, target)


# Multiplying.


@dataclass(frozen=True)
class _Block:
    """Rows of C from address c on, and numbers of k from `step` on.

    depth: lanes that hold them. a: the address of A's lanes. a_strides: of its tiles, rows and k.
    """

    step: LaneValue
    rows: LaneValue
    depth: LaneValue
    a: str
    a_strides: Sequence[LaneValue]
    c: str


class _PartWriter:
    """Writes `product.part`: `product.rows` for some of the columns, from the first of a panel on.

    For a block of rows and one of k: panel by panel, tile by tile.
    """

    def __init__(self, code: Code, tile: Tile) -> None:
        self._code = code
        self._tile = tile
        self._padded = _padded(code, _value("n"), tile)

    def write(self) -> None:
        code, m, k = self._code, _value("m"), _value("k")
        if self._tile is AMX_BF16:
            amx_tiles.configure(code)
        block_rows = self._tile.block_rows
        with code.loop(index(0), m, block_rows) as row, code.loop(index(0), k, BLOCK_K) as step:
            rows = _at_most(code, code.op("sub", m, row), block_rows)
            depth = _at_most(code, code.op("sub", k, step), BLOCK_K)
            a = _offset(code, "%a", (row, _value("a_row")), (step, _value("a_k")))
            c = _offset(code, "%c", (row, _value("c_row")))
            self._packs = self._is_packed(depth)
            lanes = _depth(code, depth, self._tile)
            block = _Block(step, rows, lanes, *self._block_of_a(a, rows, depth, lanes), c)
            tiles = self._tiles(rows)
            with (
                code.loop(_value("column"), _value("end"), self._tile.columns) as column,
                code.loop(index(0), tiles) as at,
            ):
                self._write_tile(block, tiles, at, column)
        if self._tile is AMX_BF16:
            amx_tiles.release(code)

    def _is_packed(self, depth: LaneValue) -> LaneValue:
        if self._tile.numbers > 1:  # pairs are made as A is packed
            return self._code.constant(1, Kind("bool"))
        columns = self._code.op("sub", _value("end"), _value("column"))
        has_panels = self._code.compare("sgt", columns, index(_DIRECT_COLUMNS))
        span = self._code.op("mul", depth, _value("a_k"))
        is_wide = self._code.compare("sgt", span, index(_DIRECT_SPAN))
        return self._code.op("or", has_panels, is_wide)

    def _either(self, packed: LaneValue, direct: LaneValue) -> LaneValue:
        return self._code.select(self._packs, packed, direct)

    def _tiles(self, rows: LaneValue) -> LaneValue:
        up = self._code.op("add", rows, index(self._tile.rows - 1))
        return self._code.op("udiv", up, index(self._tile.rows))

    def _block_of_a(
        self, a: str, rows: LaneValue, depth: LaneValue, lanes: LaneValue
    ) -> tuple[str, Sequence[LaneValue]]:
        code, a_row, a_k = self._code, _value("a_row"), _value("a_k")
        with code.when(self._packs):
            function = f"{self._tile.prefix}.pack_a"
            _call(code, function, _PACK, a, a_k, a_row, rows, depth, "%scratch")
        place = code.make(INDEX, f"select {self._packs}, ptr %scratch, ptr {a}").text
        strides = ((lanes, a_row), (index(1), a_row), (index(self._tile.rows), a_k))
        return place, [self._either(*each) for each in strides]

    def _write_tile(
        self, block: _Block, tiles: LaneValue, at: LaneValue, column: LaneValue
    ) -> None:
        code, tile, depth = self._code, self._tile, block.depth
        row = code.op("mul", at, index(tile.rows))
        height = _at_most(code, code.op("sub", block.rows, row), tile.rows)
        columns = _at_most(code, code.op("sub", _value("end"), column), tile.columns)
        a_tile, *a_strides = block.a_strides
        a = _offset(code, block.a, (row, a_tile))
        before = _depth(code, block.step, tile)
        b = _offset(code, "%packed", (before, self._padded), (column, depth))
        c = code.offset(_offset(code, block.c, (row, _value("c_row"))), "float32", column)
        operands: list[LaneValue | str] = [a, *a_strides, b, depth, c, _value("c_row")]
        operands += (height, columns, self._adds(block), *self._following(b, depth, tiles, at))
        is_wide = code.compare("sgt", columns, index(tile.lanes))
        with code.when(is_wide):
            _call(code, f"{tile.prefix}.tile", _TILE, *operands)
        with code.when(code.op("xor", is_wide, code.constant(1, is_wide.kind))):
            _call(code, f"{tile.prefix}.half_tile", _TILE, *operands)

    def _adds(self, block: _Block) -> LaneValue:
        is_later = self._code.compare("sgt", block.step, index(0))
        return self._code.op("or", _value("adds"), self._code.convert("zext", is_later, "int64"))

    def _following(
        self, b: str, depth: LaneValue, tiles: LaneValue, at: LaneValue
    ) -> tuple[str, LaneValue]:
        """The part of the next panel that a tile reads ahead, and bytes for each number of k."""
        code, width = self._code, 4 * self._tile.columns
        share = code.op("udiv", code.op("add", tiles, index(width - 1)), tiles)
        start = code.op("add", code.op("mul", at, share), index(width))
        return code.offset(b, "int8", code.op("mul", start, depth)), share


def _rows(code: Code, tile: Tile) -> None:
    names = [each.split()[1] for each in _ROWS.split(",")]
    _call(code, f"{tile.prefix}.part", _PART, *map(_value, names), index(0), _value("n"))


def _multiply(code: Code, tile: Tile) -> None:
    """For each group of columns those of its rows that are asked for."""
    scratch, a, a_row, a_k, packed, c, c_row, m, n, k, adds, width, each = _words(code, 13)
    own, of_a, of_b, of_c = (_address(code, word) for word in (scratch, a, packed, c))
    first, last = _value("first"), _value("last")
    up = code.op("sub", code.op("add", last, each), index(1))
    with code.loop(code.op("udiv", first, each), code.op("udiv", up, each)) as group:
        start = code.op("mul", group, each)
        row = code.call("smax", code.op("sub", first, start), index(0))
        stop = code.call("smin", code.call("smin", code.op("sub", last, start), each), m)
        column = code.op("mul", group, width)
        end = code.call("smin", code.op("add", column, width), n)
        _call(
            code, f"{tile.prefix}.part", _PART, _offset(code, of_a, (row, a_row)), a_row, a_k, of_b,
            _offset(code, of_c, (row, c_row)), c_row, code.op("sub", stop, row), n, k, adds, own,
            column, end,
        )  # fmt: skip


def _share(code: Code, tile: Tile) -> None:
    """Rows that are asked for; B is packed in scratch by the first call of a job in each thread.

    No job ends, and the upper half of the ticket is its number, while one of its calls runs.
    """
    scratch, a, a_row, a_k, b, b_k, b_col, c, c_row, m, n, k, adds, ticket, before = _words(
        code, 15
    )
    own, of_a, of_b, of_c = (_address(code, word) for word in (scratch, a, b, c))
    first, last = _value("first"), _value("last")
    packed = code.offset(own, "float32", index(BLOCK_K * BLOCK_ROWS))
    rows = code.op("sub", last, first)
    number = code.op("lshr", code.load(_address(code, ticket), INDEX), index(32))
    is_first = code.compare("ne", number, before)
    # A call of all rows may be one without the team, whose ticket is of another job.
    with code.when(code.op("or", is_first, code.compare("eq", rows, m))):
        _call(code, f"{tile.prefix}.pack_b", _PACK, of_b, b_k, b_col, n, k, packed)
        code.store(number, code.offset("%arguments", "int64", index(14)))
    _call(
        code, f"{tile.prefix}.rows", _ROWS, _offset(code, of_a, (first, a_row)), a_row, a_k,
        packed, _offset(code, of_c, (first, c_row)), c_row, rows, n, k, adds, own,
    )  # fmt: skip


def _batch(code: Code, tile: Tile) -> None:
    """For each item: blocks of columns, packed in scratch behind the rows of A."""
    scratch, a, b, c, inner, *strides = _words(code, 21)
    a_outer, a_inner, b_outer, b_inner, c_outer, c_inner, *strides = strides
    a_row, a_k, b_k, b_col, c_row, m, n, k, adds, most = strides
    own = _address(code, scratch)
    packed = code.offset(own, "float32", index(BLOCK_K * BLOCK_ROWS))
    places = [_address(code, each) for each in (a, b, c)]
    with code.loop(_value("first"), _value("last")) as item:
        at = (code.op("udiv", item, inner), code.op("urem", item, inner))
        by = ((a_outer, a_inner), (b_outer, b_inner), (c_outer, c_inner))
        of_a, of_b, of_c = (
            _offset(code, place, *zip(at, strides, strict=True))
            for place, strides in zip(places, by, strict=True)
        )
        done = code.slot(index(0))
        up = code.op("sub", code.op("add", n, most), index(1))
        with code.loop(index(0), code.op("udiv", up, most)):
            column = code.get(done, INDEX)
            columns = code.call("smin", code.op("sub", n, column), most)
            code.set(done, code.op("add", column, columns))
            source = _offset(code, of_b, (column, b_col))
            target = code.offset(of_c, "float32", column)
            _call(code, f"{tile.prefix}.pack_b", _PACK, source, b_k, b_col, columns, k, packed)
            rows = (of_a, a_row, a_k, packed, target, c_row, m, columns, k, adds, own)
            _call(code, f"{tile.prefix}.rows", _ROWS, *rows)
