"""Attention forward: softmax of scores times values, and each row's logsumexp."""

from csrun.compiler.emit.llvm.attention.attention_sizes import QueryBlock
from csrun.compiler.emit.llvm.attention.attention_writer import AttentionWriter
from csrun.compiler.emit.llvm.lane_functions.elementary import Float32
from csrun.compiler.emit.llvm.lane_values import LANES, LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import FLOAT, FLOATS, Matrix, each_vector
from csrun.compiler.kernels.attention import Attention


class ForwardWriter(AttentionWriter):
    """Writes the attention function; keys and values are packed once per pair."""

    def __init__(self, kernel: Attention, columns: int) -> None:
        super().__init__(kernel, columns)
        sizes, products, scratch = self._sizes, self._products, self.scratch
        self._packed_keys = products.room(sizes.keys, sizes.size)
        self._packed_values = products.room(sizes.value_size, sizes.keys)
        self._attended = scratch.matrix(sizes.rows, sizes.value_size)
        # A vector of rows may extend beyond the block.
        self._largest = Matrix(scratch.take(4 * (sizes.rows + LANES)), 1)
        self._sums = Matrix(scratch.take(4 * (sizes.rows + LANES)), 1)

    def _write_pair(self) -> None:
        sizes, products = self._sizes, self._products
        query, key, value = map(self._of_pair, self._kernel.operands)
        out, logsumexp = map(self._of_pair, self._kernel.results)
        keys = index(sizes.keys)
        products.pack(key.transposed, keys, index(sizes.size), self._packed_keys)
        products.pack(value, index(sizes.value_size), keys, self._packed_values)
        rows = self._score_rows()
        with self._blocks() as block:
            self._write_scores(block, query, self._packed_keys)
            rows.write_softmax(block, self._largest, self._sums)
            values, size = self._packed_values, sizes.value_size
            self._multiply_seen(block, self._scores, values, self._attended, size)
            self._write_results(block, out.at(self.code, block.first))
            self._write_logsumexp(block, logsumexp.at(self.code, block.first))

    def _write_results(self, block: QueryBlock, out: Matrix) -> None:
        """Divide the weighted sums of values by the sums of their weights."""
        code = self.code
        with code.loop(index(0), block.count) as row:
            source, target = self._attended.at(code, row), out.at(code, row)
            total = code.splat(code.load(self._sums.at(code, row).pointer, FLOAT), LANES)

            def visit(at: LaneValue, lanes: LaneValue | None) -> None:
                value = source.load(code, at, None)
                if self._draw is not None:
                    value = code.op("fmul", value, code.constant(self._draw.scale, FLOATS))
                target.store(code, code.op("fdiv", value, total), at, lanes)

            each_vector(code, index(self._sizes.value_size), visit)

    def _write_logsumexp(self, block: QueryBlock, logsumexp: Matrix) -> None:
        code, along = self.code, logsumexp.transposed

        def visit(at: LaneValue, lanes: LaneValue | None) -> None:
            largest = self._largest.load(code, at, None)
            total = Float32(code, FLOATS).log(self._sums.load(code, at, None))
            along.store(code, code.op("fadd", largest, total), at, lanes)

        each_vector(code, block.count, visit)
