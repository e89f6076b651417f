"""Attention backward: weights from the saved logsumexp, then the gradients of the operands."""

from csrun.compiler.emit.llvm.attention.attention_sizes import QueryBlock
from csrun.compiler.emit.llvm.attention.attention_writer import AttentionWriter
from csrun.compiler.emit.llvm.lane_values import LaneValue, index
from csrun.compiler.emit.llvm.loops.row_sums import add_lanes
from csrun.compiler.emit.llvm.products.matrices import FLOATS, Matrix, each_vector
from csrun.compiler.emit.llvm.products.packed_products import ProductSizes
from csrun.compiler.kernels.attention import Attention


class BackwardWriter(AttentionWriter):
    """Writes the gradient function; gradients of keys and values are sums over blocks of
    queries.
    """

    def __init__(self, kernel: Attention, columns: int) -> None:
        super().__init__(kernel, columns)
        sizes, products, scratch = self._sizes, self._products, self.scratch
        self._packed_keys = products.room(sizes.keys, sizes.size)
        self._packed_values = products.room(sizes.keys, sizes.value_size)
        # packed keys, for the gradient of queries
        self._packed_rows = products.room(sizes.size, sizes.keys)
        self._packed_queries = products.room(sizes.size, sizes.rows)
        self._packed_grad = products.room(sizes.value_size, sizes.rows)
        self._slopes = scratch.matrix(sizes.rows, sizes.score_stride)
        self._of_queries = scratch.matrix(sizes.rows, sizes.size)
        self._of_keys = scratch.matrix(sizes.keys, sizes.size)
        self._of_values = scratch.matrix(sizes.keys, sizes.value_size)
        self._averages = Matrix(scratch.take(4 * sizes.rows), 1)

    def _write_pair(self) -> None:
        sizes, products = self._sizes, self._products
        grad, query, key, value, out, logsumexp = map(self._of_pair, self._kernel.operands)
        to_query, to_key, to_value = map(self._of_pair, self._kernel.results)
        keys, size, value_size = map(index, (sizes.keys, sizes.size, sizes.value_size))
        products.pack(key.transposed, keys, size, self._packed_keys)
        products.pack(value.transposed, keys, value_size, self._packed_values)
        products.pack(key, size, keys, self._packed_rows)
        self._clear(self._of_keys, 0, sizes.keys, sizes.size)
        self._clear(self._of_values, 0, sizes.keys, sizes.value_size)
        rows = self._score_rows()
        with self._blocks() as block:
            own = grad.at(self.code, block.first)
            self._write_scores(block, query, self._packed_keys)
            values, slopes = self._packed_values, self._slopes
            self._multiply_keys(block, own, values, slopes, sizes.value_size)
            self._write_averages(block, own, out.at(self.code, block.first))
            rows.write_slopes(block, self._slopes, logsumexp, self._averages)
            self._add_to_values(block, own)
            self._add_to_keys(block)
            self._write_queries(block, to_query.at(self.code, block.first))
        for found, target, columns in (
            (self._of_keys, to_key, sizes.size),
            (self._of_values, to_value, sizes.value_size),
        ):
            self._copy_rows(found, target, keys, columns, None)
            self._clear(target, sizes.keys, sizes.all_keys, columns)

    def _write_averages(self, block: QueryBlock, grad: Matrix, out: Matrix) -> None:
        """Write the sum of gradient times result of each row."""
        code, zero = self.code, self.code.constant(0.0, FLOATS)
        with code.loop(index(0), block.count) as row:
            slope, value, slot = grad.at(code, row), out.at(code, row), code.slot(zero)

            def visit(at: LaneValue, lanes: LaneValue | None) -> None:
                product = code.op("fmul", slope.load(code, at, lanes), value.load(code, at, lanes))
                code.set(slot, code.op("fadd", code.get(slot, FLOATS), product))

            each_vector(code, index(self._sizes.value_size), visit)
            total = add_lanes(code, code.get(slot, FLOATS))
            code.store(total, self._averages.at(code, row).pointer)

    def _add_to_values(self, block: QueryBlock, grad: Matrix) -> None:
        products, columns = self._products, index(self._sizes.value_size)
        products.pack(grad, columns, block.count, self._packed_grad)
        sizes = ProductSizes(block.seen, columns, block.count)
        weights = self._scores.transposed
        products.multiply(weights, self._packed_grad, self._of_values, sizes, adds=True)

    def _add_to_keys(self, block: QueryBlock) -> None:
        products, columns = self._products, index(self._sizes.size)
        products.pack(self._scaled, columns, block.count, self._packed_queries)
        sizes = ProductSizes(block.seen, columns, block.count)
        slopes = self._slopes.transposed
        products.multiply(slopes, self._packed_queries, self._of_keys, sizes, adds=True)

    def _write_queries(self, block: QueryBlock, target: Matrix) -> None:
        size = self._sizes.size
        self._multiply_seen(block, self._slopes, self._packed_rows, self._of_queries, size)
        scale = self.code.constant(self._kernel.scale, FLOATS)
        self._copy_rows(self._of_queries, target, block.count, size, scale)

    def _clear(self, target: Matrix, first: int, last: int, columns: int) -> None:
        """Set rows to zero."""
        code = self.code
        if first == last:
            return
        zero = code.constant(0.0, FLOATS)
        with code.loop(index(first), index(last)) as number:
            row = target.at(code, number)
            each_vector(code, index(columns), lambda at, lanes: row.store(code, zero, at, lanes))
