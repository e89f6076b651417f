"""Base class of attention functions: arguments, blocks of queries, scores of a block."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from csrun.compiler.emit.llvm.attention.attention_sizes import PART_ROWS, AttentionSizes, QueryBlock
from csrun.compiler.emit.llvm.attention.score_rows import ScoreRows
from csrun.compiler.emit.llvm.attention.weight_draw import NUMBERS, WeightDraw, kept_stride
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.nests import argument
from csrun.compiler.emit.llvm.products.matrices import (
    FLOATS,
    Matrix,
    each_vector,
    smaller,
    times,
)
from csrun.compiler.emit.llvm.products.packed_products import Products, ProductSizes, ThreadScratch
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.attention import Attention


class AttentionWriter(ABC):
    """Writes the function of a kernel: a loop over pairs, and over the blocks of a pair's queries.

    columns: columns of a panel of the products.
    """

    def __init__(self, kernel: Attention, columns: int) -> None:
        self.code = Code()
        self.parameters = (*kernel.reads, *kernel.results)
        dropout = kernel.dropout
        self.numbers = () if dropout is None else (*NUMBERS, str(dropout.stream))
        self._kernel = kernel
        self._sizes = AttentionSizes.of(kernel)
        count = len(self.parameters)
        self._bases = {a: argument(self.code, n) for n, a in enumerate(self.parameters)}
        self.scratch = ThreadScratch(self.code, argument(self.code, count + 1))
        self._products = Products(self.code, self.scratch, columns)
        self._draw = self._weight_draw(count)
        sizes = self._sizes
        self._scaled = self.scratch.matrix(sizes.rows, sizes.size)
        self._scores = self.scratch.matrix(sizes.rows, sizes.score_stride)

    @property
    def pairs(self) -> int:
        """Number of rows of a call."""
        return self._sizes.pairs

    def lines(self) -> list[str]:
        """Return the instructions."""
        code = self.code
        with code.loop(LaneValue("%first", INDEX), LaneValue("%last", INDEX)) as pair:
            self._pair = pair
            self._write_pair()
        return ["entry:", *code.entry, *code.lines, "  ret void"]

    @abstractmethod
    def _write_pair(self) -> None: ...

    def _weight_draw(self, arguments: int) -> WeightDraw | None:
        """Return the random draw of dropped weights; None without dropout."""
        code, dropout, sizes = self.code, self._kernel.dropout, self._sizes
        if dropout is None:
            return None
        place = argument(code, arguments)
        numbers = {}
        for n, text in enumerate(self.numbers):
            number = code.load(code.offset(place, "float64", index(n)), Kind("float64"))
            numbers[text] = code.convert("fptoui", number, "int64")
        stride = kept_stride(sizes.all_keys)
        kept = Matrix(self.scratch.take(sizes.rows * stride), stride, dtype="bool")
        return WeightDraw(code, sizes, dropout, numbers, kept)

    def _of_pair(self, array: Array) -> Matrix:
        """Return the matrix of the pair in an array [B, H, rows, columns]."""
        code, heads = self.code, self._sizes.heads
        sample = code.op("udiv", self._pair, index(heads))
        head = code.op("urem", self._pair, index(heads))
        strides = array.strides
        elements = code.op("add", times(code, sample, strides[0]), times(code, head, strides[1]))
        pointer = code.offset(self._bases[array], array.dtype, elements)
        return Matrix(pointer, strides[2], (*strides, 1)[3], array.dtype)

    def _score_rows(self) -> ScoreRows:
        mask = None if self._kernel.mask is None else self._of_pair(self._kernel.mask)
        return ScoreRows(self.code, self._sizes, self._scores, mask, self._draw)

    @contextmanager
    def _blocks(self) -> Iterator[QueryBlock]:
        """Context manager of the loop over blocks of queries; yields the block."""
        code, sizes = self.code, self._sizes
        with code.loop(index(0), index(sizes.queries), sizes.rows) as first:
            rest = code.op("sub", index(sizes.queries), first)
            count = smaller(code, rest, index(sizes.rows))
            seen = index(sizes.keys)
            if sizes.is_causal:
                seen = smaller(code, code.op("add", first, count), seen)
            yield QueryBlock(first, count, seen)

    def _write_scores(self, block: QueryBlock, query: Matrix, keys: str) -> None:
        """Write the scaled queries of a block, and their scores with the keys that it sees."""
        code, size = self.code, self._sizes.size
        scale = code.constant(self._kernel.scale, FLOATS)
        self._copy_rows(query.at(code, block.first), self._scaled, block.count, size, scale)
        self._multiply_keys(block, self._scaled, keys, self._scores, size)
        if self._draw is not None:
            self._draw.write(self._pair, block)

    def _multiply_seen(
        self, block: QueryBlock, a: Matrix, packed: str, c: Matrix, columns: int
    ) -> None:
        """Multiply weights of the keys that a block sees by a packed matrix of all keys."""
        with self._parts(block) as (start, part):
            left, right = a.at(self.code, start), c.at(self.code, start)
            sizes = ProductSizes(part.count, index(columns), part.seen)
            if self._sizes.is_causal:
                size = self._sizes.keys, columns
                self._products.multiply_first(left, packed, right, sizes, size)
            else:
                self._products.multiply(left, packed, right, sizes)

    def _multiply_keys(
        self, block: QueryBlock, a: Matrix, packed: str, c: Matrix, columns: int
    ) -> None:
        """Multiply vectors of a block's queries by packed vectors of the keys that it sees."""
        with self._parts(block) as (start, part):
            sizes = ProductSizes(part.count, part.seen, index(columns))
            self._products.multiply(a.at(self.code, start), packed, c.at(self.code, start), sizes)

    @contextmanager
    def _parts(self, block: QueryBlock) -> Iterator[tuple[LaneValue, QueryBlock]]:
        """Yield parts of a block, with their first row: earlier parts see fewer keys."""
        code = self.code
        if not self._sizes.is_causal:
            yield index(0), block
            return
        with code.loop(index(0), block.count, PART_ROWS) as start:
            count = smaller(code, code.op("sub", block.count, start), index(PART_ROWS))
            first = code.op("add", block.first, start)
            seen = smaller(code, code.op("add", first, count), block.seen)
            yield start, QueryBlock(first, count, seen)

    def _copy_rows(
        self, source: Matrix, target: Matrix, rows: LaneValue, columns: int, scale: LaneValue | None
    ) -> None:
        """Copy rows, multiplied by a number."""
        code = self.code
        with code.loop(index(0), rows) as row:
            read, written = source.at(code, row), target.at(code, row)

            def visit(at: LaneValue, lanes: LaneValue | None) -> None:
                value = read.load(code, at, lanes)
                value = value if scale is None else code.op("fmul", value, scale)
                written.store(code, value, at, lanes)

            each_vector(code, index(columns), visit)
