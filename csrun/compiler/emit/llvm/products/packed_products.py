"""Calls of matrix product functions, and their scratch."""

from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import Matrix, padded, smaller, times
from csrun.executable.arrays import aligned
from csrun.executable.products import BLOCK_K, ROWS_BYTES


class ThreadScratch:
    """Allocator of a thread's scratch."""

    def __init__(self, code: Code, pointer: str) -> None:
        self._code = code
        self._pointer = pointer
        self.nbytes = 0

    def take(self, nbytes: int) -> str:
        """Return the address of a new part."""
        place = self._code.offset(self._pointer, "int8", index(self.nbytes))
        self.nbytes += aligned(nbytes)
        return place

    def matrix(self, rows: int, columns: int) -> Matrix:
        """Return a new float32 matrix, whose rows are whole vectors."""
        stride = padded(columns)
        return Matrix(self.take(4 * rows * stride), stride)


@dataclass(frozen=True)
class ProductSizes:
    """Sizes of [m, k] by [k, n]."""

    m: LaneValue
    n: LaneValue
    k: LaneValue


class Products:
    """Matrix products whose second operand is packed first.

    columns: columns of a panel.
    """

    def __init__(self, code: Code, scratch: ThreadScratch, columns: int) -> None:
        self._code = code
        self._scratch = scratch
        self._columns = columns
        self._own = scratch.take(ROWS_BYTES)

    def room(self, n: int, k: int) -> str:
        """Return the size of a packed matrix [k, n] in scratch."""
        return self._scratch.take(4 * self._padded(n) * k)

    def pack(self, b: Matrix, n: LaneValue, k: LaneValue, packed: str) -> None:
        """Pack a matrix [k, n]."""
        strides = f"i64 {b.row}, i64 {b.column}"
        self._call("pack_b", f"ptr {b.pointer}, {strides}, {n}, {k}, ptr {packed}")

    def multiply(
        self,
        a: Matrix,
        packed: str,
        c: Matrix,
        sizes: ProductSizes,
        adds: bool | LaneValue = False,
    ) -> None:
        """Multiply [m, k] by the first columns of a packed [k, n]; written or added to c."""
        adds = index(int(adds)) if isinstance(adds, bool) else adds
        left = f"ptr {a.pointer}, i64 {a.row}, i64 {a.column}, ptr {packed}"
        result = f"ptr {c.pointer}, i64 {c.row}, {sizes.m}, {sizes.n}, {sizes.k}, {adds}"
        self._call("rows", f"{left}, {result}, ptr {self._own}")

    def multiply_first(
        self, a: Matrix, packed: str, c: Matrix, sizes: ProductSizes, size: tuple[int, int]
    ) -> None:
        """Multiply [m, k] by the first k rows of a packed matrix of this size, panel by panel."""
        code = self._code
        rows, columns = size
        stride = self._padded(columns)
        with (
            code.loop(index(0), sizes.k, BLOCK_K) as step,
            code.loop(index(0), index(columns), self._columns) as column,
        ):
            depth = smaller(code, code.op("sub", index(rows), step), index(BLOCK_K))
            start = code.op("add", times(code, step, stride), code.op("mul", column, depth))
            panel = code.offset(packed, "float32", start)
            width = smaller(code, code.op("sub", index(columns), column), index(self._columns))
            k = smaller(code, code.op("sub", sizes.k, step), index(BLOCK_K))
            is_later = code.convert("zext", code.compare("sgt", step, index(0)), "int64")
            own = a.at(code, index(0), step)
            to = c.at(code, index(0), column)
            self.multiply(own, panel, to, ProductSizes(sizes.m, width, k), is_later)

    def _padded(self, n: int) -> int:
        """Round columns up to whole panels."""
        return -(-n // self._columns) * self._columns

    def _call(self, name: str, arguments: str) -> None:
        self._code.lines.append(f"  call void @product.{name}({arguments})")
