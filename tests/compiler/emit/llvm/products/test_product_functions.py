"""Matrix products in machine code, against float64; operands end at guard pages."""

import re
from ctypes import addressof, c_int64, c_void_p

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
import llvmlite.binding as llvm
from support.matrix_products import (
    INSTRUCTIONS,
    guarded,
    machine_of,
    module_of,
    multiply,
    plan_of,
)

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.executable import bfloat16, products
from csrun.executable.arrays import empty
from csrun.executable.product_operand import ProductOperand
from csrun.executable.products import (
    AVX2,
    AVX512,
    AVX512_BF16,
    BLOCK_K,
    OWN_A_FLOATS,
    PACKED_BYTES,
    SCRATCH_BYTES,
    plan_product,
)

TILES = (AVX2, AVX512)  # this host runs both: vectors of 16 lanes are two of 8
BFLOAT16_TILES = [
    pytest.param(bfloat16.TILES[each.values[0]], marks=each.marks) for each in INSTRUCTIONS
]
ALL_TILES = [*TILES, *BFLOAT16_TILES]
EPS = np.finfo(np.float32).eps
#: m, n, k around the edges of tiles, panels, blocks, and of what is packed.
SIZES = [
    (33, 31, 32),
    *((m, n, k) for m in (1, 6, 7) for n in (1, 8, 17) for k in (1, 4, 7)),
    (5, 9, 50),
    (13, 33, 3),
    (12, 32, 16),
    (29, 24, 9),
    (50, 50, 129),
    (7, 15, BLOCK_K - 1),
    (6, 16, BLOCK_K),
    (25, 31, BLOCK_K + 1),
    (97, 129, 5),
    (100, 200, 2 * BLOCK_K + 6),
    (2, 300, 9),
    (30, 500, 20),
    (31, 261, 2 * BLOCK_K + 6),
    (14, 410, BLOCK_K + 1),
]


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def laid_out(values, order, at_end, gap=0):
    """Guarded values, batch first, with contiguous rows or columns or, with a gap, neither."""
    *batch, rows, columns = values.shape
    if order == "rows":
        inner = ((columns + gap), 1)
    elif order == "columns":
        inner = (1, (rows + gap))
    else:
        inner = (3 * columns, 3)
    strides, size = [], rows * columns * 3 + gap * (rows + columns)
    for n in reversed(batch):
        strides.insert(0, size)
        size *= n
    return guarded(values, (*strides, *inner), at_end)


def check(a, b, out, tile, adds=False, **how):
    """Assert that each element's error is within the bound of a sum in any order.

    Operands of paired products are rounded to bfloat16 first.
    """
    for operand in (a, b) if tile.numbers > 1 else ():
        BFLOAT16.round(operand, operand)
    before = out.astype(np.float64) if adds else 0.0
    multiply(a, b, out, tile, adds, **how)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 2) * EPS * (np.abs(wide_a) @ np.abs(wide_b) + np.abs(before))
    assert np.all(np.abs(out - (wide_a @ wide_b + before)) <= bound)


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
@pytest.mark.parametrize("at_end", [True, False])
def test_products_of_all_sizes_and_orders(tile, at_end):
    orders = [(x, y) for x in ("rows", "columns", "none") for y in ("rows", "columns", "none")]
    for number, (m, n, k) in enumerate(SIZES):
        for turn, (of_a, of_b) in enumerate(orders[number % 3 :: 3]):
            a, b = (
                laid_out(normal(*s), o, at_end, turn % 2)
                for s, o in (((m, k), of_a), ((k, n), of_b))
            )
            order = ("rows", "columns")[(number + turn) % 2]
            out = laid_out(normal(m, n), order, at_end, turn % 3)
            check(a, b, out, tile, adds=bool(turn % 2), at_end=at_end)


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16, cbfloat16()], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_words_give_the_bits_of_their_numbers(tile, kind, is_transposed):
    for m, n, k in SIZES:
        words, numbers = np.empty((k, n), np.uint16), np.empty((k, n), np.float32)
        kind.narrow(normal(k, n), words)
        kind.widen(words, numbers)
        if is_transposed:
            words, numbers = (np.ascontiguousarray(x.T).T for x in (words, numbers))
        a, found, expected = normal(m, k), *np.empty((2, m, n), np.float32)
        multiply(a, words, found, tile, half=kind)
        multiply(a, numbers, expected, tile)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_words_have_no_form_in_batches_or_as_the_first_operand():
    words, numbers = np.zeros((2, 8, 8), np.uint16), np.zeros((2, 8, 8), np.float32)
    out = np.empty_like(numbers)
    assert plan_of(numbers, words, out, False, 0, AVX2) is None
    assert plan_of(words[0], numbers[0], out[0], False, 0, AVX2) is None
    assert plan_of(numbers[0], words[0], out[0].T, False, 0, AVX2) is None


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_batches(tile):
    """Heads of a fused projection, one B shared by all items, batch axes that cannot be merged."""
    joined = normal(3, 20, 3, 4, 8)
    q, k, v = (joined[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = np.empty((3, 4, 20, 20), np.float32)
    check(q, k.swapaxes(2, 3), scores, tile)
    out = normal(3, 20, 4, 8)
    check(scores, v, out.transpose(0, 2, 1, 3), tile, adds=True)
    check(scores.swapaxes(2, 3), q, out.transpose(0, 2, 1, 3), tile)
    check(normal(5, 7, 30), normal(30, 9), normal(5, 7, 9), tile)
    check(normal(5, 2, 30)[:, :1], normal(30, 9), normal(5, 1, 9), tile)
    check(normal(7, 30), normal(5, 30, 9), normal(5, 7, 9), tile)
    apart = normal(4, 4, 4, 5, 6)[::2, ::2, ::2]
    check(apart, normal(2, 1, 2, 6, 3), normal(4, 4, 4, 5, 3)[::2, ::2, ::2], tile)
    check(normal(2, 3, 5000), normal(2, 5000, 17), normal(2, 3, 17), tile)


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_strides_that_run_backwards_and_vectors_in_matrices(tile):
    a, b, out = normal(9, 20), normal(20, 40), normal(9, 40)
    check(a[::-1, ::-1], b[::-1], out[::-1], tile)
    check(a, b[:, ::-1], out, tile, adds=True)
    check(a, b[:, 3:4], out[:, 7:8], tile)
    check(a[:1], b, normal(3, 40, 5)[1:2, :, 3], tile)
    check(b.T[:, ::2], a.T[::2], normal(40, 9), tile)


def test_batches_are_one_step_or_one_product():
    heads = plan_of(normal(2, 12, 9, 8), normal(2, 12, 8, 9), normal(2, 12, 9, 9), False, 0, AVX2)
    assert [step.function for step in heads.steps] == ["product.batch"]
    assert heads.steps[0].rows == 24
    assert not heads.packed_bytes
    dense = plan_of(normal(3, 9, 8), normal(8, 9), normal(3, 9, 9), False, 0, AVX2)
    assert [step.function for step in dense.steps] == ["product.pack", "product.multiply"]
    assert dense.steps[1].words[7] == 27


def test_threads_pack_a_matrix_each_for_itself():
    a, b, out = normal(128, 50), normal(50, 50), normal(128, 50)
    parts = plan_of(a, b, out, False, 0, AVX2, threads=2)
    assert [(s.function, s.rows, s.chunk) for s in parts.steps] == [("product.share", 128, 64)]
    assert not parts.packed_bytes
    for m, threads in ((128, 1), (20, 2)):  # one thread, fewer than two tiles for each
        whole = plan_of(a[:m], b, out[:m], False, 0, AVX2, threads)
        assert [step.function for step in whole.steps] == ["product.pack", "product.multiply"]


def transposed(m, k):
    return normal(k, m).T


def functions(a, b, tile=AVX512, threads=2):
    plan = plan_of(a, b, normal(len(a), b.shape[1]), False, 0, tile, threads)
    return [(step.function, step.words[-1]) for step in plan.steps]


def test_threads_divide_columns(monkeypatch):
    """A is read in place if its rows are contiguous, else packed if it is the smaller operand."""
    monkeypatch.setattr(products, "cache_ways", lambda: 8)
    read, packed = ("product.columns", 0), ("product.columns", 1)
    for threads in (1, 2, 3):
        assert functions(normal(40, 70), normal(70, 128 * threads), threads=threads) == [read]
    assert functions(normal(1200, 700), normal(700, 256)) == [read]
    (few,) = functions(normal(1200, 700), normal(700, 255))
    assert few[0] == "product.share"
    # 12 rows in 4, 2 and 1 sets of the L1 cache, of 8 lines each; then 6 rows in one.
    assert functions(normal(40, 768), normal(768, 1000)) == [read]
    assert functions(normal(40, 512), normal(512, 1000)) == [read]
    assert functions(normal(40, 1024), normal(1024, 1000)) == [packed]
    assert functions(normal(40, 1024), normal(1024, 1000), AVX2) == [read]
    assert functions(transposed(384, 1025), normal(1025, 1536)) == [packed]
    assert functions(transposed(384, 6000), normal(6000, 1536)) == [packed] * 3  # 2,560 of k
    for a, b in (
        (transposed(768, 1025), normal(1025, 768)),
        (transposed(2048, 9), normal(9, 1 << 17)),
    ):
        assert {name for name, _ in functions(a, b)} == {"product.pack", "product.multiply"}


@pytest.mark.parametrize("form", ["share", "columns"])
def test_a_matrix_is_packed_once_a_job(form):
    """A second call of the same job reuses the packed matrix; another job packs its own values."""
    a, b, out = normal(128, 50), normal(50, 50), normal(128, 50)
    packed, shared = b, 0
    if form == "columns":
        a, b, out = transposed(50, 70), normal(70, 256), normal(50, 256)
        packed, shared = a, 1
    number, scratch = np.array([1]), empty(SCRATCH_BYTES)
    operands = map(ProductOperand.of, (a, b, out))
    (step,) = plan_product(*operands, False, 0, AVX2, 2, number.ctypes.data).steps
    assert step.function == f"product.{form}"
    words = (c_int64 * len(step.words))(scratch.ctypes.data, *step.words[1:])
    run = machine_of(AVX2).function(step.function, c_void_p, c_int64, c_int64)
    half, whole = step.rows // 2, step.rows
    run(addressof(words), 0, half)
    wanted = a @ b
    packed[...] = 2 * packed
    run(addressof(words), half, whole)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
    number += 1
    run(addressof(words), half, whole)
    second = np.split(out, 2, shared)[1]
    np.testing.assert_allclose(second, np.split(a @ b, 2, shared)[1], rtol=1e-4, atol=1e-5)
    packed[...] = packed / 2
    run(addressof(words), 0, whole)  # all of them: perhaps without a team
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(40, 50, 60), (136, 50, 60), (130, 300, BLOCK_K + 71)], ids=str)
@pytest.mark.parametrize("tiles", [TILES, *BFLOAT16_TILES], ids=str)
def test_bits_depend_on_k_alone(size, tiles):
    """Independent of chunks, threads, tiles, memory layouts, and other rows and columns."""
    m, n, k = size
    a, b, found = normal(m, k), normal(k, n), []
    if not isinstance(tiles, tuple):
        for operand in (a, b):
            BFLOAT16.round(operand, operand)
        tiles = (AVX2, tiles) if tiles is AVX512_BF16 else (tiles,)
    for tile in tiles:
        for threads, rows in ((2, tile.rows), (2, 7), (3, 24), (1, m), (8, 12)):
            found.append(np.empty((m, n), np.float32))
            multiply(a, b, found[-1], tile, chunks=lambda _, rows=rows: rows, threads=threads)
        found.append(np.empty((n, m), np.float32).T)
        multiply(np.asfortranarray(a), np.asfortranarray(b), found[-1], tile)
        batch = np.empty((2, m, n), np.float32)
        multiply(np.stack([a, a]), np.stack([b, b]), batch, tile)
        found.append(batch[1])
        part = found[0].copy()
        multiply(a[3:17], b[:, 5:14], part[3:17, 5:14], tile)
        found.append(part)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_infinities_and_nan_stay_in_their_rows_and_columns(tile):
    a, b = normal(9, 20), normal(20, 19)
    for operand in (a, b):
        BFLOAT16.round(operand, operand)
    a[2, 3], a[4, 5], b[7, 18], b[3, 1] = np.inf, np.nan, np.inf, 0.0
    out = np.empty((9, 19), np.float32)
    multiply(a, b, out, tile)
    with np.errstate(invalid="ignore"):
        wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
    assert np.isnan(out).sum() == np.isnan(wanted).sum() > 19


def test_what_is_packed_is_bounded():
    for m, n, k in ((1024, 50257, 768), (768, 768, 50257), (4096, 4096, 4096), (8, 10**6, 3)):
        arrays = [
            ProductOperand(2**40 * place, "float32", shape, strides)
            for place, (shape, strides) in enumerate(
                [((m, k), (1, m)), ((k, n), (n, 1)), ((m, n), (n, 1))], 1
            )
        ]
        plan = plan_product(*arrays, False, 0, AVX512, 2)
        assert plan.packed_bytes <= PACKED_BYTES
        packs = [s for s in plan.steps if s.function == "product.pack"]
        own = [s for s in plan.steps if s.function == "product.columns"]
        assert all(-(-m // 12) * 12 * step.words[11] <= OWN_A_FLOATS for step in own)
        packed = sum(step.words[4] * step.words[5] for step in packs)
        assert packed + sum(step.words[10] * step.words[11] for step in own) == n * k
        assert all(step.chunk % AVX512.columns == 0 for step in (*packs, *own))


def test_what_has_no_form():
    a, b, out = normal(4, 5), normal(5, 6), normal(4, 6)
    none = lambda *arrays: plan_of(*arrays, False, 0, AVX2) is None  # noqa: E731
    assert not none(a, b, out)
    assert none(a.astype(np.float64), b, out)
    assert none(a, b, normal(8, 12)[::2, ::2])
    assert none(a, b, normal(4, 7))
    assert none(a[:, :0], b[:0], out)
    assert none(a[0], b, out[0])
    assert none(a, b, np.lib.stride_tricks.as_strided(out, (4, 6), (4, 4)))
    square = normal(4, 4)
    assert none(square, normal(4, 4), square)
    assert none(normal(3, 4, 5), b, out)


@pytest.mark.parametrize(
    ("tile", "cpus", "register", "operation"),
    [
        (AVX2, ("haswell", "znver3"), "ymm", "vfmadd"),
        (AVX512, ("x86-64-v4", "skylake-avx512"), "zmm", "vfmadd"),
        (AVX512_BF16, ("haswell", "znver4", "sapphirerapids"), "zmm", "vdpbf16ps"),
    ],
)
def test_the_loop_of_a_tile_keeps_its_sums_in_registers(tile, cpus, register, operation):
    for cpu in cpus:
        loops = re.findall(r"(?s)\n\.LBB\w+:(.*?)\n\tj", assembly(tile, cpu))
        loops = [x for x in loops if x.count(operation) == 2 * tile.rows]
        assert len(loops) == 1 + tile.has_tall
        for loop in loops:
            assert loop.count(register) >= 6 * tile.rows
            assert not re.search(rf"vmov\w+.*%{register}\d+, |vmov\w+ -?\d*\(%r[sb]p\)", loop)


def assembly(tile, cpu):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=cpu, opt=2, reloc="pic")
    module = llvm.parse_assembly(module_of(tile))
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_assembly(module)
