"""Blocks of a product: rows of A and numbers of k that fit in a cache, multiplied tile by tile."""

from collections.abc import Sequence
from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products import amx_tiles
from csrun.compiler.emit.llvm.products.product_calls import (
    PACK,
    TALL_TILE,
    TILE,
    address_at,
    argument,
    at_most,
    padded_columns,
    panel_lanes,
    write_call,
)
from csrun.executable.products import AMX_BF16, BLOCK_K, Tile

#: Up to this many columns, and this many numbers in a row, A is not packed: packing would take
#: longer than it saves.
_DIRECT_COLUMNS, _DIRECT_SPAN = 128, 8192


@dataclass(frozen=True)
class ProductBlock:
    """Rows of C from address c on, and numbers of k from `step` on.

    depth: lanes of these numbers. a: address of A's lanes. a_strides: strides of tiles, rows, k.
    """

    step: LaneValue
    rows: LaneValue
    depth: LaneValue
    a: str
    a_strides: Sequence[LaneValue]
    c: str


@dataclass(frozen=True)
class BlockPanel:
    """Columns of a block of C, beginning with a panel, and the tiles of its rows."""

    block: ProductBlock
    column: LaneValue
    columns: LaneValue
    tiles: LaneValue


class PartWriter:
    """Writes `product.part`: `product.rows` for some of the columns, from the first of a panel on.

    For a block of rows and one of k: panel by panel, tile by tile. Rows of A are packed first, or
    the address is that of panels of all rows, for at most BLOCK_K numbers of k.
    """

    def __init__(self, code: Code, tile: Tile) -> None:
        self._code = code
        self._tile = tile
        self._padded = padded_columns(code, argument("n"), tile)

    def write(self) -> None:
        code, m, k = self._code, argument("m"), argument("k")
        if self._tile is AMX_BF16:
            amx_tiles.configure(code)
        block_rows = self._tile.block_rows
        with code.loop(index(0), m, block_rows) as row, code.loop(index(0), k, BLOCK_K) as step:
            rows = at_most(code, code.op("sub", m, row), block_rows)
            depth = at_most(code, code.op("sub", k, step), BLOCK_K)
            a = address_at(code, "%a", (row, argument("a_row")), (step, argument("a_k")))
            c = address_at(code, "%c", (row, argument("c_row")))
            lanes = panel_lanes(code, depth, self._tile)
            block = ProductBlock(step, rows, lanes, *self._block_of_a(a, row, rows, depth), c)
            with code.loop(argument("column"), argument("end"), self._tile.columns) as column:
                self._write_panel(block, column)
        if self._tile is AMX_BF16:
            amx_tiles.release(code)

    def _must_pack(self, depth: LaneValue) -> LaneValue:
        if self._tile.numbers > 1:  # pairs are made as A is packed
            return self._code.constant(1, Kind("bool"))
        columns = self._code.op("sub", argument("end"), argument("column"))
        has_panels = self._code.compare("sgt", columns, index(_DIRECT_COLUMNS))
        span = self._code.op("mul", depth, argument("a_k"))
        is_wide = self._code.compare("sgt", span, index(_DIRECT_SPAN))
        return self._code.op("or", has_panels, is_wide)

    def _tiles(self, rows: LaneValue) -> LaneValue:
        up = self._code.op("add", rows, index(self._tile.rows - 1))
        return self._code.op("udiv", up, index(self._tile.rows))

    def _block_of_a(
        self, a: str, row: LaneValue, rows: LaneValue, depth: LaneValue
    ) -> tuple[str, Sequence[LaneValue]]:
        code, a_row, a_k = self._code, argument("a_row"), argument("a_k")
        lanes = panel_lanes(code, depth, self._tile)
        is_packed = code.compare("ne", argument("a_is_packed"), index(0))
        is_read = code.op("xor", is_packed, code.constant(1, is_packed.kind))
        packs = code.op("and", is_read, self._must_pack(depth))
        with code.when(packs):
            function = f"{self._tile.prefix}.pack_a"
            write_call(code, function, PACK, a, a_k, a_row, rows, depth, "%scratch")
        own = code.make(INDEX, f"select {packs}, ptr %scratch, ptr {a}").text
        panels = address_at(code, "%a", (row, lanes))
        place = code.make(INDEX, f"select {is_packed}, ptr {panels}, ptr {own}").text
        has_panels = code.op("or", is_packed, packs)
        strides = ((lanes, a_row), (index(1), a_row), (index(self._tile.rows), a_k))
        return place, [code.select(has_panels, *each) for each in strides]

    def _write_panel(self, block: ProductBlock, column: LaneValue) -> None:
        """Multiply the tiles of a panel; if it has only one vector, tall tiles first."""
        code, tile, rows = self._code, self._tile, block.rows
        tiles = self._tiles(rows)
        columns = at_most(code, code.op("sub", argument("end"), column), tile.columns)
        is_wide = code.compare("sgt", columns, index(tile.lanes))
        panel = BlockPanel(block, column, columns, tiles)
        with code.when(is_wide), code.loop(index(0), tiles) as at:
            self._write_tile(panel, at, "tile")
        with code.when(code.op("xor", is_wide, code.constant(1, is_wide.kind))):
            done = index(0)
            if tile.has_tall:
                done = code.op("mul", code.op("udiv", rows, index(2 * tile.rows)), index(2))
                with code.loop(index(0), done, 2) as at:
                    self._write_tile(panel, at, "tall_tile")
            with code.loop(done, tiles) as at:
                self._write_tile(panel, at, "half_tile")

    def _write_tile(self, panel: BlockPanel, at: LaneValue, function: str) -> None:
        code, tile, block = self._code, self._tile, panel.block
        row = code.op("mul", at, index(tile.rows))
        height = at_most(code, code.op("sub", block.rows, row), tile.rows)
        a_tile, *a_strides = block.a_strides
        a = address_at(code, block.a, (row, a_tile))
        before = panel_lanes(code, block.step, tile)
        b = address_at(code, "%packed", (before, self._padded), (panel.column, block.depth))
        c_row = argument("c_row")
        c = address_at(code, block.c, (row, c_row), (panel.column, index(1)))
        operands: list[LaneValue | str] = [a, *a_strides, b, block.depth, c, c_row]
        operands += (height, panel.columns, self._adds(block))
        operands += self._following(b, block.depth, panel.tiles, at)
        if function == "tall_tile":
            operands.append(code.op("mul", a_tile, index(tile.rows)))
        parameters = TALL_TILE if function == "tall_tile" else TILE
        write_call(code, f"{tile.prefix}.{function}", parameters, *operands)

    def _adds(self, block: ProductBlock) -> LaneValue:
        is_later = self._code.compare("sgt", block.step, index(0))
        return self._code.op("or", argument("adds"), self._code.convert("zext", is_later, "int64"))

    def _following(
        self, b: str, depth: LaneValue, tiles: LaneValue, at: LaneValue
    ) -> tuple[str, LaneValue]:
        """Return the address and the bytes per value of k that a tile prefetches of a panel."""
        code, width = self._code, 4 * self._tile.columns
        share = code.op("udiv", code.op("add", tiles, index(width - 1)), tiles)
        start = code.op("add", code.op("mul", at, share), index(width))
        return code.offset(b, "int8", code.op("mul", start, depth)), share
