"""Matrix products: packed panels, blocks of k, a register tile.

The sum of an element has a fixed order. Each block of BLOCK_K values of k is a chain of fused
multiply-adds that starts at 0; the sums of blocks are added in order, to C if `adds`. The order
does not depend on sizes, chunks, threads, tiles or vectors. A product with k = 0 does not change C.

`product.pack_b` packs B [k, n]: for each block of k the panels of all columns, padded with zeros.
`product.rows` is C[m, n] = (adds ? C : 0) + A B, with packed B, for any k; the columns of C are
contiguous. B and scratch are aligned to 64 bytes. csrun/executable/products.py has the sizes of
scratch, and the arguments of the jobs `product.pack`, `product.multiply`, `product.share`,
`product.columns` and `product.batch`.
`product.pack.words` and `product.columns.words` pack a B of 16-bit words, which they widen.

Functions on pairs are called `pairs.pack_b` etc. for AVX512-BF16, `amx.pack_b` etc. for AMX-BF16
(`amx_tiles.py`). Their operands are bfloat16 numbers, stored as float32 or, for B, also as words.
Both instructions treat an operand or a sum below 2^-126 as zero. Otherwise AVX512-BF16 sums in the
same order, with the same bits. AMX-BF16 sums each 32 values of k separately: those with an even
index and those with an odd one are chains of fused multiply-adds that start at 0; both are added,
and then added to the total, which starts at C if `adds`. The functions declare the instructions
that they need, so an object for any CPU can contain them; only a CPU that has these instructions
calls them.

Source: Van Zee and van de Geijn 2015, BLIS
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from csrun.base.half_formats import WORD, HalfFormat
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, LaneValue, index
from csrun.compiler.emit.llvm.products import amx_tiles
from csrun.compiler.emit.llvm.products.product_blocks import PartWriter
from csrun.compiler.emit.llvm.products.product_calls import (
    JOB,
    PACK,
    PART,
    ROWS,
    TALL_TILE,
    TILE,
    address_at,
    argument,
    at_most,
    padded_columns,
    panel_lanes,
    types_of,
    write_call,
)
from csrun.compiler.emit.llvm.products.product_panels import PanelWriter
from csrun.compiler.emit.llvm.products.product_tiles import TallTileWriter, TileWriter
from csrun.executable.products import (
    AMX_BF16,
    AVX512_BF16,
    BLOCK_COLUMNS,
    BLOCK_K,
    BLOCK_ROWS,
    EXPORTED,
    OWN_A_FLOATS,
    Tile,
)

#: Instructions of functions that only some CPUs call.
_FEATURES = {AVX512_BF16.prefix: "+avx512bf16", AMX_BF16.prefix: "+amx-tile,+amx-bf16"}
#: Functions that kernels call, each with its declaration.
CALLED = {
    name: f"declare void @{name}({types_of(parameters)})"
    for name, parameters in zip(EXPORTED, (PACK, ROWS), strict=True)
}


@dataclass(frozen=True)
class ProductCode:
    """Functions of all products of a program, and declarations of the intrinsics they call."""

    text: str
    declared: dict[str, str]


def product_code(tile: Tile, half: HalfFormat | None = None) -> ProductCode:
    """Return the functions for tiles of this size; half: 16-bit format of B if it is words."""
    panels, is_amx = PanelWriter(tile.columns, tile), tile is AMX_BF16
    pack_a = amx_tiles.RowWriter(tile) if is_amx else PanelWriter(tile.rows, tile)
    tile_writer = amx_tiles.AmxTileWriter if is_amx else TileWriter
    writers: list[tuple[str, str, Callable[[Code], None]]] = [
        ("internal pack_panels", PACK, panels.write),
        ("internal pack_a", PACK, pack_a.write),
        ("internal tile", TILE, tile_writer(tile, vectors=2).write),
        ("internal half_tile", TILE, tile_writer(tile, vectors=1).write),
        ("pack_b", PACK, lambda code: _pack_b(code, tile)),
        ("internal part", PART, lambda code: PartWriter(code, tile).write()),
        ("rows", ROWS, lambda code: _rows(code, tile)),
        ("pack", JOB, lambda code: _pack(code, tile)),
        ("multiply", JOB, lambda code: _multiply(code, tile)),
        ("share", JOB, lambda code: _share(code, tile)),
        ("columns", JOB, lambda code: _columns(code, tile)),
        ("batch", JOB, lambda code: _batch(code, tile)),
    ]
    if tile.has_tall:
        writers.append(("internal tall_tile", TALL_TILE, TallTileWriter(tile).write))
    if half is not None:
        of_words = PanelWriter(tile.columns, tile, half)
        writers += [
            ("internal pack_panels.words", PACK, of_words.write),
            ("pack.words", JOB, lambda code: _pack(code, tile, WORD)),
            ("columns.words", JOB, lambda code: _columns(code, tile, WORD)),
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


def _words(code: Code, count: int) -> list[LaneValue]:
    """Arguments of a job; addresses are numbers, too."""
    places = [code.offset("%arguments", "int64", index(n)) for n in range(count)]
    return [code.load(place, INDEX) for place in places]


def _address(code: Code, word: LaneValue) -> str:
    return code.make(INDEX, f"inttoptr {word} to ptr").text


# Packing B.


def _pack_b(code: Code, tile: Tile) -> None:
    n, k = argument("n"), argument("k")
    _pack_columns(
        code, tile, (index(0), n), n, k, ("%b", argument("b_k"), argument("b_col")), "%packed"
    )


def _pack(code: Code, tile: Tile, dtype: str = "float32") -> None:
    _, b, b_k, b_col, n, k, packed = _words(code, 7)
    bounds, b_place = (argument("first"), argument("last")), _address(code, b)
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
    """Pack columns in all blocks of k; the first column begins a panel."""
    (first, last), (pointer, b_k, b_col) = bounds, b
    padded, columns = padded_columns(code, n, tile), code.op("sub", last, first)
    for step, depth in _blocks_of_k(code, k):
        source = address_at(code, pointer, (step, b_k), (first, b_col), dtype=dtype)
        before, lanes = (panel_lanes(code, each, tile) for each in (step, depth))
        target = address_at(code, packed, (before, padded), (first, lanes))
        write_call(
            code, _pack_panels(tile, dtype), PACK, source, b_k, b_col, columns, depth, target
        )


def _pack_panels(tile: Tile, dtype: str) -> str:
    return f"{tile.prefix}.pack_panels{'.words' if dtype == WORD else ''}"


# Multiplying.


def _rows(code: Code, tile: Tile) -> None:
    names = [each.split()[1] for each in ROWS.split(",")]
    write_call(
        code, f"{tile.prefix}.part", PART, *map(argument, names), index(0), argument("n"), index(0)
    )


def _multiply(code: Code, tile: Tile) -> None:
    """Multiply the requested rows of each group of columns."""
    scratch, a, a_row, a_k, packed, c, c_row, m, n, k, adds, width, each = _words(code, 13)
    own, of_a, of_b, of_c = (_address(code, word) for word in (scratch, a, packed, c))
    first, last = argument("first"), argument("last")
    up = code.op("sub", code.op("add", last, each), index(1))
    with code.loop(code.op("udiv", first, each), code.op("udiv", up, each)) as group:
        start = code.op("mul", group, each)
        row = code.call("smax", code.op("sub", first, start), index(0))
        stop = code.call("smin", code.call("smin", code.op("sub", last, start), each), m)
        column = code.op("mul", group, width)
        end = code.call("smin", code.op("add", column, width), n)
        own_a, own_c = address_at(code, of_a, (row, a_row)), address_at(code, of_c, (row, c_row))
        rows = code.op("sub", stop, row)
        write_call(
            code, f"{tile.prefix}.part", PART, own_a, a_row, a_k, of_b, own_c, c_row, rows, n, k,
            adds, own, column, end, index(0),
        )  # fmt: skip


def _share(code: Code, tile: Tile) -> None:
    """Multiply the requested rows; the first call of a job in each thread packs B in its scratch.

    No job ends, and no other one has a number, while one of its calls runs.
    """
    *operands, job_number, before = _words(code, 15)
    scratch, a, a_row, a_k, b, b_k, b_col, c, c_row, m, n, k, adds = operands
    own, of_a, of_b, of_c = (_address(code, word) for word in (scratch, a, b, c))
    first, last = argument("first"), argument("last")
    packed = code.offset(own, "float32", index(BLOCK_K * BLOCK_ROWS))
    rows = code.op("sub", last, first)
    with _first_call(code, (job_number, before), code.compare("eq", rows, m)):
        write_call(code, f"{tile.prefix}.pack_b", PACK, of_b, b_k, b_col, n, k, packed)
    write_call(
        code, f"{tile.prefix}.rows", ROWS, address_at(code, of_a, (first, a_row)), a_row, a_k,
        packed, address_at(code, of_c, (first, c_row)), c_row, rows, n, k, adds, own,
    )  # fmt: skip


def _columns(code: Code, tile: Tile, dtype: str = "float32") -> None:
    """Compute some columns of C: pack each block of columns of B, and multiply by it.

    A is read in place, or packed in scratch by the first call of a job in each thread.
    """
    *operands, job_number, before, packs = _words(code, 16)
    scratch, a, a_row, a_k, b, b_k, b_col, c, c_row, m, n, k, adds = operands
    own, of_a, of_b, of_c = (_address(code, word) for word in (scratch, a, b, c))
    first, last = argument("first"), argument("last")
    up = code.op("add", m, index(tile.rows - 1))
    padded = code.op("mul", code.op("udiv", up, index(tile.rows)), index(tile.rows))
    is_packed = code.compare("ne", packs, index(0))
    is_all = code.compare("eq", code.op("sub", last, first), n)
    with code.when(is_packed), _first_call(code, (job_number, before), is_all):
        for step, depth in _blocks_of_k(code, k):
            source = address_at(code, of_a, (step, a_k))
            target = address_at(code, own, (panel_lanes(code, step, tile), padded))
            write_call(code, f"{tile.prefix}.pack_a", PACK, source, a_k, a_row, m, depth, target)
    packed = code.offset(own, "float32", index(OWN_A_FLOATS))
    pack_b = _pack_panels(tile, dtype)
    with code.loop(first, last, BLOCK_COLUMNS) as column:
        columns = at_most(code, code.op("sub", last, column), BLOCK_COLUMNS)
        target = code.offset(of_c, "float32", column)
        for step, depth in _blocks_of_k(code, k):
            source = address_at(code, of_b, (column, b_col), (step, b_k), dtype=dtype)
            write_call(code, pack_b, PACK, source, b_k, b_col, columns, depth, packed)
            panels = address_at(code, own, (panel_lanes(code, step, tile), padded))
            rows = address_at(code, of_a, (step, a_k))
            either = code.make(INDEX, f"select {is_packed}, ptr {panels}, ptr {rows}").text
            is_later = code.convert("zext", code.compare("sgt", step, index(0)), "int64")
            write_call(
                code, f"{tile.prefix}.part", PART, either, a_row, a_k, packed, target, c_row,
                m, columns, depth, code.op("or", adds, is_later), own, index(0), columns, packs,
            )  # fmt: skip


def _blocks_of_k(code: Code, k: LaneValue) -> Iterator[tuple[LaneValue, LaneValue]]:
    """Write a loop over blocks of k; return the first index of a block, and its size."""
    with code.loop(index(0), k, BLOCK_K) as step:
        yield step, at_most(code, code.op("sub", k, step), BLOCK_K)


@contextmanager
def _first_call(
    code: Code, numbers: tuple[LaneValue, LaneValue], is_all: LaneValue
) -> Iterator[None]:
    """Code for the first call of a job in each thread. A call for all rows may run without the
    pool, whose number is then that of another job.

    numbers: address of the current job's number, and number of the job of the last first call
    """
    job_number, before = numbers
    number = code.load(_address(code, job_number), INDEX)
    is_first = code.compare("ne", number, before)
    with code.when(code.op("or", is_first, is_all)):
        yield
        code.store(number, code.offset("%arguments", "int64", index(14)))


def _batch(code: Code, tile: Tile) -> None:
    """Multiply each item by blocks of columns, packed in scratch after the rows of A."""
    scratch, a, b, c, inner, *strides = _words(code, 21)
    a_outer, a_inner, b_outer, b_inner, c_outer, c_inner, *strides = strides
    a_row, a_k, b_k, b_col, c_row, m, n, k, adds, most = strides
    own = _address(code, scratch)
    packed = code.offset(own, "float32", index(BLOCK_K * BLOCK_ROWS))
    places = [_address(code, each) for each in (a, b, c)]
    with code.loop(argument("first"), argument("last")) as item:
        at = (code.op("udiv", item, inner), code.op("urem", item, inner))
        by = ((a_outer, a_inner), (b_outer, b_inner), (c_outer, c_inner))
        of_a, of_b, of_c = (
            address_at(code, place, *zip(at, strides, strict=True))
            for place, strides in zip(places, by, strict=True)
        )
        with code.loop(index(0), n, most) as column:
            columns = code.call("smin", code.op("sub", n, column), most)
            source = address_at(code, of_b, (column, b_col))
            target = code.offset(of_c, "float32", column)
            write_call(code, f"{tile.prefix}.pack_b", PACK, source, b_k, b_col, columns, k, packed)
            rows = (of_a, a_row, a_k, packed, target, c_row, m, columns, k, adds, own)
            write_call(code, f"{tile.prefix}.rows", ROWS, *rows)
