"""Steps of a matrix product in machine code: jobs whose rows threads share.

A step runs a job over its rows, in chunks, after the previous step. Word 0 of the arguments is the
address of the calling thread's scratch, filled in by the caller.


    product.pack      rows: columns of B [k, n]; `product.pack.words`: of words
        scratch, b, b_k, b_col, n, k, packed
    product.multiply  rows: those of C [m, n] = (adds ? C : 0) + A B, for each group of columns
        scratch, a, a_row, a_k, packed, c, c_row, m, n, k, adds,
        columns of a group, rows of a group: m, rounded up to full chunks
    product.share     rows: those of C, as product.multiply; each thread packs B for itself
        scratch, a, a_row, a_k, b, b_k, b_col, c, c_row, m, n, k, adds,
        address of the pool's job number, number of the job for which B was packed
    product.columns   rows: columns of C; a thread packs the columns of B that it multiplies;
        `product.columns.words`: of words
        as product.share, but for A; then whether each thread packs A, or reads it in place
    product.batch     rows: items of a batch, in two axes, the inner one of `inner` items
        scratch, a, b, c, inner, a_outer, a_inner, b_outer, b_inner, c_outer, c_inner,
        a_row, a_k, b_k, b_col, c_row, m, n, k, adds, number of columns packed at a time

Strides are in elements. Operands that are bfloat16 numbers, as words or float32, have separate
functions on pairs of numbers: `pairs.pack` etc. for AVX512-BF16, `amx.pack` etc. for AMX-BF16.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import gcd, prod

from csrun.base.half_formats import WORD
from csrun.executable.machine_code import cache_ways
from csrun.executable.product_form import BatchAxis, ProductForm, form_of
from csrun.executable.product_operand import ProductOperand

EXPORTED = ("product.pack_b", "product.rows")  # functions that machine code of kernels calls
BLOCK_K = 512  # products that an element's sum accumulates before it is added to C
BLOCK_ROWS = 96  # of A, packed at a time
BLOCK_COLUMNS = 128  # of B, packed at a time if threads divide columns; A may be read in place
OWN_A_FLOATS = 15 << 16  # limit of A that each thread packs for itself
_BATCH_FLOATS = 1 << 16  # limit of an item's B, packed in a thread's scratch
_OWN_FLOATS = 1 << 19  # limit of B that each thread packs for itself
_PAGE_BYTES = 4096  # addresses at this distance are in one set of the L1 cache
PACKED_BYTES = 4 << 20  # limit of B packed at a time
ROWS_BYTES = 4 * BLOCK_K * BLOCK_ROWS  # of A, packed for a block of k
SCRATCH_BYTES = ROWS_BYTES + PACKED_BYTES  # of each thread: rows of A, then columns of B
_PACKED_COLUMNS = 96  # maximum of a chunk
_CHUNKS = 4  # per thread, to balance threads of different speed
_TILES_OF_CHUNK = 2  # tiles of rows per chunk
_GROUP_COLUMNS = 128  # minimum of a group
_LEAST_WORK = 1 << 17  # multiplications of a chunk: 3 us
_LEAST_PACKED = 1 << 19  # numbers packed by several threads; one thread packs fewer faster
_LEAST_SUMS = 10  # independent sums that keep two FMA units of latency 5 busy
_LARGE = 1 << 22  # multiplications of an item above which all threads share it


@dataclass(frozen=True)
class Tile:
    """Register tile: number of rows, and lanes of each of the two vectors in a row.

    prefix: prefix of its functions' names.
    numbers: values of k in a lane of 32 bits: one float32, or a pair of bfloat16.
    step: lanes of k that an instruction multiplies; panels are padded with zeros to a multiple.
    block_rows: rows of A packed at a time.
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
        """Return whether a tile of one vector needs twice the rows for enough independent sums."""
        return self.rows < _LEAST_SUMS

    def padded_rows(self, m: int) -> int:
        """Return the number of rows of the tiles of m rows."""
        return -(-m // self.rows) * self.rows

    def padded_columns(self, n: int) -> int:
        """Return the number of columns of the panels of n columns."""
        return -(-n // self.columns) * self.columns

    def depth(self, k: int) -> int:
        """Return the number of lanes of a panel for k numbers."""
        return -(-k // (self.numbers * self.step)) * self.step


AVX2 = Tile(6, 8)  # 12 sums, 2 vectors of B and 2 of A in 16 registers
AVX512 = Tile(12, 16)  # 24 sums of 32 registers
AVX512_BF16 = Tile(12, 16, "pairs", numbers=2)
AMX_BF16 = Tile(32, 16, "amx", numbers=2, step=16, block_rows=2 * BLOCK_ROWS)  # 4 of 8 registers


def tile_of(target: str) -> Tile:
    """Return the tile of float32 products for a CPU with these instructions."""
    return AVX512 if "+avx512f" in target else AVX2


@dataclass(frozen=True)
class ProductStep:
    """Job: function, words of its arguments, number of rows, and rows per chunk."""

    function: str
    words: tuple[int, ...]
    rows: int
    chunk: int


@dataclass(frozen=True)
class ProductPlan:
    """Steps of a product in order, and the size of the memory that they need at `packed`."""

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
    """Return the steps of out = a @ b, or out += a @ b; None for an unsupported layout.

    b may be words if rows of `out` are contiguous.
    packed: address aligned to 64 bytes; a plan for address 0 has the size that is needed.
    threads: number of threads that share the steps, for the chunk size; the bits do not change.
    job_number: address of the pool's job number.

    Shapes: a [..., m, k], b [..., k, n], out [..., m, n]; leading axes of a and b broadcast
    """
    form = form_of(a, b, out, adds)
    if form is None or (b.dtype == WORD and not (form.b_size == b.size and not form.axes)):
        return None
    steps = tuple(_steps(form, packed, tile, threads, job_number))
    needed = [
        tile.padded_columns(s.words[4]) * tile.depth(s.words[5])
        for s in steps
        if s.function.startswith(f"{tile.prefix}.pack")
    ]
    return ProductPlan(steps, 4 * max(needed, default=0))


def _steps(
    form: ProductForm, packed: int, tile: Tile, threads: int, job_number: int
) -> Iterator[ProductStep]:
    items = prod(axis.size for axis in form.axes)
    is_batch = items > 1 and tile.depth(form.k) * tile.columns <= _BATCH_FLOATS
    if is_batch and (items >= _CHUNKS * threads or form.work <= _LARGE):
        for places in product(*(range(axis.size) for axis in form.axes[:-2])):
            yield _batch_step(form.item(places), tile)
    else:
        for places in product(*(range(axis.size) for axis in form.axes)):
            yield from _matrix_steps(form.item(places), packed, tile, threads, job_number)


def _is_packed_by_each(form: ProductForm, tile: Tile, threads: int) -> bool:
    """Return whether each thread packs B for itself: to fetch what another packed takes longer."""
    if threads == 1 or form.b_size != 4 or form.work < threads * _LEAST_WORK:
        return False
    is_small = tile.depth(form.k) * tile.padded_columns(form.n) <= _OWN_FLOATS
    return is_small and form.m >= threads * 2 * tile.rows


def _is_read_in_place(form: ProductForm, tile: Tile) -> bool:
    """Return whether A can be read as it is: a row's numbers are consecutive, and the lines of a
    tile's rows do not drive each other out of the L1 cache.
    """
    places = _PAGE_BYTES // gcd(4 * form.a_row, _PAGE_BYTES)
    return tile.numbers == 1 and form.a_k == 1 and -(-tile.rows // places) <= cache_ways()


def _share_step(form: ProductForm, tile: Tile, threads: int, job_number: int) -> ProductStep:
    rows = tile.rows * -(-_LEAST_WORK // (tile.padded_columns(form.n) * form.k * tile.rows))
    each = form.m // (rows * threads)  # chunks of a thread
    if each < _CHUNKS:  # equal numbers for all threads
        rows = -(-form.m // (threads * max(each, 1)))
    words = (*_operands(form), job_number, 0)
    return ProductStep(f"{tile.prefix}.share", words, form.m, rows)


def _columns_steps(
    form: ProductForm, tile: Tile, packs: bool, job_number: int
) -> Iterator[ProductStep]:
    """Steps in which threads divide the columns of C; packs: whether each packs A first, of as many
    numbers of k as it has room for.
    """
    rows = tile.padded_rows(form.m)
    depth = tile.numbers * OWN_A_FLOATS // rows // BLOCK_K * BLOCK_K if packs else form.k
    chunk = tile.columns * -(-_LEAST_WORK // (form.m * min(depth, form.k) * tile.columns))
    function = f"{tile.prefix}.columns{'' if form.b_size == 4 else '.words'}"
    for step in range(0, form.k, depth):
        words = (*_operands(form.of_k(step, depth)), job_number, 0, int(packs))
        yield ProductStep(function, words, form.n, chunk)


def _operands(form: ProductForm) -> tuple[int, ...]:
    """The first words of the arguments of `product.share` and `product.columns`."""
    return (
        *(0, form.a, form.a_row, form.a_k, form.b, form.b_k, form.b_col, form.c, form.c_row),
        *(form.m, form.n, form.k, int(form.adds)),
    )


def _batch_step(form: ProductForm, tile: Tile) -> ProductStep:
    outer, inner = (BatchAxis(1, 0, 0, 0), *form.axes)[-2:]
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
    form: ProductForm, packed: int, tile: Tile, threads: int, job_number: int
) -> Iterator[ProductStep]:
    """Rows of C are divided among threads, or columns, if there are enough of them."""
    has_columns = form.n >= threads * BLOCK_COLUMNS
    rows = tile.padded_rows(form.m)
    if has_columns and _is_read_in_place(form, tile):
        yield from _columns_steps(form, tile, False, job_number)
    elif threads > 1 and has_columns and rows < form.n and rows * BLOCK_K <= OWN_A_FLOATS:
        yield from _columns_steps(form, tile, True, job_number)
    elif _is_packed_by_each(form, tile, threads):
        yield _share_step(form, tile, threads, job_number)
    else:
        yield from _packed_steps(form, packed, tile, threads)


def _packed_steps(
    form: ProductForm, packed: int, tile: Tile, threads: int
) -> Iterator[ProductStep]:
    """Yield the steps of each block of columns and group of blocks of k."""
    most = tile.numbers * PACKED_BYTES // 4
    columns = min(tile.padded_columns(form.n), most // BLOCK_K)
    depth = max(most // columns // BLOCK_K, 1) * BLOCK_K
    for column in range(0, form.n, columns):
        block = replace(
            form,
            b=form.b + form.b_size * column * form.b_col,
            c=form.c + 4 * column,
            n=min(columns, form.n - column),
        )
        for step in range(0, form.k, depth):
            yield from _shared_steps(block.of_k(step, depth), packed, tile, threads)


def _shared_steps(
    form: ProductForm, packed: int, tile: Tile, threads: int
) -> Iterator[ProductStep]:
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
        return tile.block_rows, tile.padded_columns(n)
    rows = _TILES_OF_CHUNK * tile.rows
    groups = min(-(-threads * BLOCK_ROWS // m), max(n // _GROUP_COLUMNS, 1))
    width = tile.padded_columns(-(-n // groups))
    return rows * -(-_LEAST_WORK // (width * k * rows)), width


def _columns_of_chunk(n: int, k: int, tile: Tile, threads: int) -> int:
    if n * k < _LEAST_PACKED:
        return tile.padded_columns(n)
    return min(tile.padded_columns(-(-n // (_CHUNKS * threads))), _PACKED_COLUMNS)
