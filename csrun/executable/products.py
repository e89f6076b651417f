"""Steps of a matrix product in machine code: the jobs that threads share.

A step is a call of a job over its rows, in chunks, after the step before it. Word 0 of its
arguments is the address of the calling thread's scratch, which the caller puts there.

    product.pack      rows: columns of B [k, n]; `product.pack.words`: of words
        scratch, b, b_k, b_col, n, k, packed
    product.multiply  rows: those of C [m, n] = (adds ? C : 0) + A B, for each group of columns
        scratch, a, a_row, a_k, packed, c, c_row, m, n, k, adds,
        columns of a group, rows of a group: m, and some to have whole chunks
    product.share     rows: those of C, as product.multiply; each thread packs B for itself
        scratch, a, a_row, a_k, b, b_k, b_col, c, c_row, m, n, k, adds,
        address of the team's job number, number of the job that B was packed for last
    product.batch     rows: items of a batch, in two axes, the inner one of `inner` items
        scratch, a, b, c, inner, a_outer, a_inner, b_outer, b_inner, c_outer, c_inner,
        a_row, a_k, b_k, b_col, c_row, m, n, k, adds, columns that are packed at a time

Strides are in elements. Tiles whose lanes hold pairs have functions of their own, for operands that
are numbers of bfloat16, as words or float32: `pairs.pack` and so on for AVX512-BF16, `amx.pack` and
so on for AMX-BF16.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

from csrun.base.half_formats import WORD
from csrun.executable.product_operand import ProductOperand

EXPORTED = ("product.pack_b", "product.rows")  # functions that machine code of kernels calls
BLOCK_K = 512  # numbers that an element's sum adds up before it adds to C
BLOCK_ROWS = 96  # of A, packed at a time
_BATCH_FLOATS = 1 << 16  # of an item's B, packed in a thread's scratch
_OWN_FLOATS = 1 << 19  # at most, of a B that each thread packs for itself even for few rows of C
_OWN_ROWS, _MOST_OWN_FLOATS = 384, 1 << 21  # of C for each thread, and of a larger B
PACKED_BYTES = 4 << 20  # at most, of B that is packed at a time
ROWS_BYTES = 4 * BLOCK_K * BLOCK_ROWS  # of A, packed for a block of k
SCRATCH_BYTES = ROWS_BYTES + PACKED_BYTES  # of each thread: rows of A, then columns of B
_PACKED_COLUMNS = 96  # of a chunk, at most
_CHUNKS = 4  # of each thread, in which one may be slower than others
_TILES_OF_CHUNK = 2  # of rows
_GROUP_COLUMNS = 128  # at least, of a group
_LEAST_WORK = 1 << 17  # multiplications of a chunk: 3 us
_LEAST_PACKED = 1 << 19  # numbers that threads share: fewer are packed sooner by one of them
_LEAST_SUMS = 10  # that two units add to at a time, each sum in 5 cycles
_LARGE = 1 << 22  # multiplications of an item that all threads share


@dataclass(frozen=True)
class Tile:
    """Sums in registers: rows, and lanes of each of the two vectors in a row.

    prefix: the start of its functions' names
    numbers: of k in a lane of 32 bits: one float32, or a pair of bfloat16
    step: lanes of k that an instruction multiplies; panels have zeros up to a multiple of it
    block_rows: of A, packed at a time
    """

    rows: int
    lanes: int
    prefix: str = "product"
    numbers: int = 1
    step: int = 1
    block_rows: int = BLOCK_ROWS

    @property
    def columns(self) -> int:
        """Columns of a panel of B."""
        return 2 * self.lanes

    @property
    def has_tall(self) -> bool:
        """Return whether a tile of one vector needs twice the rows to have enough sums at work."""
        return self.rows < _LEAST_SUMS

    def depth(self, k: int) -> int:
        """Lanes of a panel for so many numbers of k."""
        return -(-k // (self.numbers * self.step)) * self.step


AVX2 = Tile(6, 8)  # 12 sums, 2 vectors of B and 2 of A in 16 registers
AVX512 = Tile(12, 16)  # 24 sums of 32 registers
AVX512_BF16 = Tile(12, 16, "pairs", numbers=2)
AMX_BF16 = Tile(32, 16, "amx", numbers=2, step=16, block_rows=2 * BLOCK_ROWS)  # 4 of 8 registers


def tile_of(target: str) -> Tile:
    """The tile of float32 products in machine code for a CPU with these instructions."""
    return AVX512 if "+avx512f" in target else AVX2


@dataclass(frozen=True)
class ProductStep:
    """A job: its function, words of the arguments, rows, and those of a chunk."""

    function: str
    words: tuple[int, ...]
    rows: int
    chunk: int


@dataclass(frozen=True)
class ProductPlan:
    """Steps of a product, one after the other, and bytes that they need at `packed`."""

    steps: tuple[ProductStep, ...]
    packed_bytes: int


def plan_product(
    a: ProductOperand,
    b: ProductOperand,
    out: ProductOperand,
    adds: bool,
    packed: int,
    tile: Tile,
    threads: int,
    job_number: int = 0,
) -> ProductPlan | None:
    """The steps of out = a @ b, or out += a @ b; None where they have no such form.

    b may be words, where rows of `out` have consecutive numbers.
    packed: an address, aligned to 64 bytes; steps planned for address 0 tell how much they need.
    threads: that share the steps; chunks are made for them, the bits do not depend on it.
    job_number: the address of their team's.
    Shapes: a [..., m, k], b [..., k, n], out [..., m, n]; leading axes of a and b broadcast
    """
    operands = (a, b, out)
    if any(len(o.shape) < 2 or not prod(o.shape) for o in operands):
        return None
    if any(o.dtype != "float32" for o in (a, out)) or b.dtype not in ("float32", WORD):
        return None
    if not out.is_distinct or any(_overlap(out, operand) for operand in (a, b)):
        return None
    form = _form(a, b, out, adds)
    if form is None or (b.dtype == WORD and not (form.b_size == b.size and not form.axes)):
        return None
    steps = tuple(_steps(form, packed, tile, threads, job_number))
    needed = [
        _padded(s.words[4], tile) * tile.depth(s.words[5])
        for s in steps
        if s.function.startswith(f"{tile.prefix}.pack")
    ]
    return ProductPlan(steps, 4 * max(needed, default=0))


@dataclass(frozen=True)
class _Axis:
    """An axis of a batch: its size, and strides of the three operands."""

    size: int
    a: int
    b: int
    c: int

    def merged(self, inner: "_Axis") -> "_Axis | None":
        """This axis with the next one as one axis."""
        pairs = ((self.a, inner.a), (self.b, inner.b), (self.c, inner.c))
        if all(outer == stride * inner.size for outer, stride in pairs):
            return replace(inner, size=self.size * inner.size)
        return None


@dataclass(frozen=True)
class _Form:
    """A batch of products of which C has columns that are consecutive."""

    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    a_row: int
    a_k: int
    b_k: int
    b_col: int
    c_row: int
    adds: bool
    axes: tuple[_Axis, ...] = ()
    b_size: int = 4  # bytes of an element

    @property
    def work(self) -> int:
        """Multiplications of an item."""
        return self.m * self.n * self.k

    def item(self, places: Sequence[int]) -> "_Form":
        """The product, or the batch, at these places of the first axes."""
        at = list(zip(places, self.axes, strict=False))
        return replace(
            self,
            a=self.a + 4 * sum(n * axis.a for n, axis in at),
            b=self.b + 4 * sum(n * axis.b for n, axis in at),
            c=self.c + 4 * sum(n * axis.c for n, axis in at),
            axes=self.axes[len(at) :],
        )


def _overlap(x: ProductOperand, y: ProductOperand) -> bool:
    (x_first, x_end), (y_first, y_end) = x.span, y.span
    return x_first < y_end and y_first < x_end


def _form(a: ProductOperand, b: ProductOperand, out: ProductOperand, adds: bool) -> _Form | None:
    """The product, transposed if rows of `out` are consecutive; its axes merged."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k or out.shape[-2:] != (m, n):
        return None
    lead = out.shape[:-2]
    of_a, of_b = _lead_strides(a, lead), _lead_strides(b, lead)
    if of_a is None or of_b is None:
        return None
    axes = [
        _Axis(*each) for each in zip(lead, of_a, of_b, out.strides[:-2], strict=True) if each[0] > 1
    ]
    (a_row, a_k), (b_k, b_col), (c_row, c_col) = a.strides[-2:], b.strides[-2:], out.strides[-2:]
    if n == 1 or c_col == 1:
        form = _Form(
            a.address, b.address, out.address, m, n, k, a_row, a_k, b_k, b_col, c_row, adds
        )
        form = replace(form, b_size=b.size)
    elif m == 1 or c_row == 1:
        axes = [replace(axis, a=axis.b, b=axis.a) for axis in axes]
        form = _Form(
            b.address, a.address, out.address, n, m, k, b_col, b_k, a_k, a_row, c_col, adds
        )
    else:
        return None
    return _merged(replace(form, axes=tuple(axes)))


def _lead_strides(operand: ProductOperand, lead: Sequence[int]) -> list[int] | None:
    """Strides of the leading axes, 0 where they are broadcast."""
    own = len(operand.shape) - 2
    if own > len(lead):
        return None
    found = [0] * (len(lead) - own)
    for n, stride, size in zip(
        operand.shape[:-2], operand.strides, lead[len(found) :], strict=False
    ):
        if n not in (1, size):
            return None
        found.append(stride if n > 1 else 0)
    return found


def _merged(form: _Form) -> _Form:
    """Axes that are one, and rows of a batch with one B."""
    axes: list[_Axis] = []
    for axis in form.axes:
        joined = axes[-1].merged(axis) if axes else None
        axes[-1:] = [joined] if joined else [*axes[-1:], axis]
    while axes and not axes[-1].b:
        last = axes[-1]
        if form.m == 1:  # its rows are as far apart as the items
            form = replace(form, a_row=last.a, c_row=last.c)
        elif last.a != form.m * form.a_row or last.c != form.m * form.c_row:
            break
        form = replace(form, m=form.m * last.size)
        axes.pop()
    return replace(form, axes=tuple(axes))


def _steps(
    form: _Form, packed: int, tile: Tile, threads: int, job_number: int
) -> Iterator[ProductStep]:
    items = prod(axis.size for axis in form.axes)
    is_batch = items > 1 and tile.depth(form.k) * tile.columns <= _BATCH_FLOATS
    if is_batch and (items >= _CHUNKS * threads or form.work <= _LARGE):
        for places in product(*(range(axis.size) for axis in form.axes[:-2])):
            yield _batch_step(form.item(places), tile)
    else:
        for places in product(*(range(axis.size) for axis in form.axes)):
            yield from _matrix_steps(form.item(places), packed, tile, threads, job_number)


def _is_packed_by_each(form: _Form, tile: Tile, threads: int) -> bool:
    """Return whether each thread packs B for itself: to fetch what another packed takes longer."""
    if threads == 1 or form.b_size != 4 or form.work < threads * _LEAST_WORK:
        return False
    floats = tile.depth(form.k) * _padded(form.n, tile)
    rows = 2 * tile.rows if floats <= _OWN_FLOATS else _OWN_ROWS
    return floats <= _MOST_OWN_FLOATS and form.m >= threads * rows


def _share_step(form: _Form, tile: Tile, threads: int, job_number: int) -> ProductStep:
    words = (
        *(0, form.a, form.a_row, form.a_k, form.b, form.b_k, form.b_col, form.c, form.c_row),
        *(form.m, form.n, form.k, int(form.adds), job_number, 0),
    )
    rows = tile.rows * -(-_LEAST_WORK // (_padded(form.n, tile) * form.k * tile.rows))
    each = form.m // (rows * threads)  # chunks of a thread
    if each < _CHUNKS:  # as many for each of them
        rows = -(-form.m // (threads * max(each, 1)))
    return ProductStep(f"{tile.prefix}.share", words, form.m, rows)


def _batch_step(form: _Form, tile: Tile) -> ProductStep:
    outer, inner = (_Axis(1, 0, 0, 0), *form.axes)[-2:]
    columns = _BATCH_FLOATS // tile.depth(form.k) // tile.columns * tile.columns
    words = (
        *(0, form.a, form.b, form.c, inner.size),
        *(outer.a, inner.a, outer.b, inner.b, outer.c, inner.c),
        *(form.a_row, form.a_k, form.b_k, form.b_col, form.c_row),
        *(form.m, form.n, form.k, int(form.adds), columns),
    )
    chunk = max(1, _LEAST_WORK // form.work)
    return ProductStep(f"{tile.prefix}.batch", words, outer.size * inner.size, chunk)


def _matrix_steps(
    form: _Form, packed: int, tile: Tile, threads: int, job_number: int
) -> Iterator[ProductStep]:
    """Steps for each block of columns and group of blocks of k."""
    most = tile.numbers * PACKED_BYTES // 4
    columns = min(_padded(form.n, tile), most // BLOCK_K)
    depth = max(most // columns // BLOCK_K, 1) * BLOCK_K
    is_packed_by_each = _is_packed_by_each(form, tile, threads)
    for column in range(0, form.n, columns):
        for step in range(0, form.k, depth):
            block = replace(
                form,
                a=form.a + 4 * step * form.a_k,
                b=form.b + form.b_size * (column * form.b_col + step * form.b_k),
                c=form.c + 4 * column,
                n=min(columns, form.n - column),
                k=min(depth, form.k - step),
                adds=form.adds or step > 0,
            )
            if is_packed_by_each:
                yield _share_step(block, tile, threads, job_number)
            else:
                yield from _shared_steps(block, packed, tile, threads)


def _shared_steps(form: _Form, packed: int, tile: Tile, threads: int) -> Iterator[ProductStep]:
    """All threads pack B together, then they multiply."""
    each = _columns_of_chunk(form.n, form.k, tile, threads)
    pack = f"{tile.prefix}.pack{'' if form.b_size == 4 else '.words'}"
    of_b = (0, form.b, form.b_k, form.b_col, form.n, form.k, packed)
    yield ProductStep(pack, of_b, form.n, each)
    rows, width = _chunk(form.m, form.n, form.k, tile, threads)
    group = -(-form.m // rows) * rows
    words = (
        *(0, form.a, form.a_row, form.a_k, packed, form.c, form.c_row),
        *(form.m, form.n, form.k, int(form.adds), width, group),
    )
    yield ProductStep(f"{tile.prefix}.multiply", words, -(-form.n // width) * group, rows)


@cache
def _chunk(m: int, n: int, k: int, tile: Tile, threads: int) -> tuple[int, int]:
    """Return the rows of a chunk and the columns of a group.

    All columns are one group, if each thread has a block of rows.
    """
    if threads == 1:
        return tile.block_rows, _padded(n, tile)
    rows = _TILES_OF_CHUNK * tile.rows
    groups = min(-(-threads * BLOCK_ROWS // m), max(n // _GROUP_COLUMNS, 1))
    width = _padded(-(-n // groups), tile)
    return rows * -(-_LEAST_WORK // (width * k * rows)), width


def _columns_of_chunk(n: int, k: int, tile: Tile, threads: int) -> int:
    if n * k < _LEAST_PACKED:
        return _padded(n, tile)
    return min(_padded(-(-n // (_CHUNKS * threads)), tile), _PACKED_COLUMNS)


def _padded(n: int, tile: Tile) -> int:
    return -(-n // tile.columns) * tile.columns
