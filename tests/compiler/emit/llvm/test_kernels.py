"""LAIR kernels as machine code, against their NumPy form; arrays end at guard pages."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.machine_code import KernelCase

from csrun import nn
from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.base.mode import RunMode
from csrun.cirh.ops.reductions import SumOp
from csrun.compiler.emit.llvm.module import kernel_code
from csrun.compiler.graph.array import Array
from csrun.compiler.lair import Generated
from csrun.compiler.lair.formula import formula_loop
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.nn.initializers import zeros
from csrun.nn.tracer import Tracer

SIZES = [(1, 1), (3, 5), (17, 16), (40, 50), (129, 7), (5, 300)]


def loops_of(model, rows, columns, dtype="float32", batch=(), storage=None):
    """Loops of a training of a model on [rows, columns]; storage: its 16-bit format."""
    with Tracer(dtype, storage) as tracer:
        x = tracer.input("features", (rows, *batch, 4), dtype)
        labels = tracer.input("labels", (rows,), "int32")
        y = model(nn.Dense(columns, use_bias=False)(x))
        logits = nn.Dense(3, use_bias=False)(nn.flatten(y))
        loss = nn.softmax_cross_entropy(logits, labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    run_passes(module)
    return [k.loop for k in match_kernels(module).kernels if isinstance(k, Generated)]


MODELS = {
    "bias and relu": lambda y: nn.Dense(3, "relu")(y),
    "gelu": lambda y: nn.Dense(y.shape[-1], "gelu_tanh")(y),
    "exact gelu": lambda y: nn.Dense(y.shape[-1], "gelu")(y),
    "a sum along each row": lambda y: y / nn.sum(nn.exp(y), axis=-1, keepdims=True),
    "its rows and columns": lambda y: y * nn.sigmoid(y) - nn.mean(y, axis=-1, keepdims=True),
    "a sum over all rows": lambda y: y + y.tracer.emit(SumOp, y * y, dims=(0,), keepdim=True),
    "a comparison": lambda y: nn.where(y > 0.5, nn.tanh(y), y * y),
}


def check(loop, *numbers, rtol=3e-6, atol=2e-6):
    """Assert equal results of both forms, no writes outside of arrays, equal bits for any split."""
    case = KernelCase(loop)
    assert case.code is not None, loop.op
    rows, cut = max(loop.rows, 1), case.code.cut
    with np.errstate(all="ignore"):
        wanted = case.by_numpy(*numbers)
    found = case.by_machine_code(*numbers)
    others = [case.by_machine_code(*numbers, at_end=False)]
    for count in (2, 3, 8):
        step = -(-rows // (count * cut)) * cut
        bounds = [*range(0, rows, step), rows]
        others.append(case.by_machine_code(*numbers, bounds=bounds))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)
        for other in others:
            np.testing.assert_array_equal(other[name], found[name], err_msg=name)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_kernel_of_a_model_is_its_numpy_form(name, size):
    loops = loops_of(MODELS[name], *size)
    assert loops
    for loop in loops:
        check(loop, *(0.25 for _ in loop.op.numbers), atol=2e-6 * max(size))


@pytest.mark.parametrize("storage", [FLOAT16, BFLOAT16, cbfloat16()], ids=lambda each: each.name)
@pytest.mark.parametrize("size", [(3, 5), (17, 16), (5, 300)], ids=str)
def test_words_that_a_kernel_writes_are_those_of_its_numpy_form(size, storage):
    loops = loops_of(MODELS["bias and relu"], *size, storage=storage)
    arrays = [a for loop in loops for a in (*loop.function.parameters, *loop.function.inputs)]
    assert any(array.dtype == "uint16" for array in arrays)
    for loop in loops:
        check(loop, *(0.25 for _ in loop.op.numbers), atol=2e-6 * max(size))  # 0 for words


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_axes_within_a_row_and_rows_that_come_again(dtype):
    """Biases of one position within a sample, read and summed for each sample."""

    def model(y):
        shape = (6, y.shape[-1])
        with nn.scope("place"):
            place = y.tracer.parameter("place", shape, zeros(shape))
        return (y + place) * nn.mean(y, axis=-1, keepdims=True)

    for loop in loops_of(model, 5, 9, dtype, batch=(6,)):
        check(loop, *(0.25 for _ in loop.op.numbers), atol=2e-5)


@pytest.mark.parametrize("dims", [(0, 1), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("columns", [1, 9, 40])
def test_a_sum_over_rows_and_axes_within_them(columns, dims):
    def model(y):
        return y + y.tracer.emit(SumOp, y * y, dims=dims, keepdim=True)

    loops = loops_of(model, 17, columns, batch=(6,))
    assert any(kernel_code(loop.op, loop.writes, "kernel").has_epilogue for loop in loops)
    for loop in loops:
        check(loop, *(0.25 for _ in loop.op.numbers), rtol=1e-5, atol=1e-4)


def formula(old):
    """Each row function, in an order in which an array is overwritten."""
    x = old["x"] - old["x"].largest()
    e = x.exp()
    total = e.total()
    loss = total.log() - x.pick(old["labels"])
    slopes = (e / total).of_label(0.9, old["labels"], old["ignored"], "scale")
    return {"loss": loss, "x": slopes}


@pytest.mark.parametrize("labels", ["int32", "int64"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_functions_of_rows_are_their_numpy_form(size, labels):
    rows, columns = size
    arrays = {
        "x": Array("x", size, "float32"),
        "labels": Array("labels", (rows,), labels),
        "ignored": Array("ignored", (rows,), "bool"),
    }
    loop = formula_loop(
        "test", arrays, {"x": arrays["x"], "loss": Array("loss", (rows, 1), "float32")}, formula
    )
    case = KernelCase(loop, {"labels": np.arange(rows) % columns})
    for at_end in (True, False):
        found, wanted = case.by_machine_code(0.5, at_end=at_end), case.by_numpy(0.5)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("label", [-100, -1, 4, 2**31 - 1])
def test_a_label_that_is_no_place_reads_nothing_outside(label):
    arrays = {"x": Array("x", (3, 4), "float32"), "labels": Array("labels", (3,), "int32")}
    writes = {"picked": Array("picked", (3, 1), "float32")}
    loop = formula_loop(
        "test", arrays, writes, lambda old: {"picked": old["x"].pick(old["labels"])}
    )
    case = KernelCase(loop, {"labels": np.full(3, label)})
    for at_end in (True, False):
        assert np.isin(case.by_machine_code(at_end=at_end)["picked"], case.values["x"]).all()


def test_infinity_and_nan_go_through_sums_and_largest_numbers():
    arrays = {"x": Array("x", (4, 37), "float32")}
    writes = {n: Array(n, (4, 1), "float32") for n in ("largest", "total")}
    loop = formula_loop(
        "test",
        arrays,
        writes,
        lambda old: {"largest": old["x"].largest(), "total": old["x"].total()},
    )
    x = np.random.default_rng(0).standard_normal((4, 37)).astype(np.float32)
    x[0, 36], x[1, 3], x[2, 0], x[2, 36] = np.nan, np.inf, np.inf, -np.inf
    found = KernelCase(loop, {"x": x}).by_machine_code()
    np.testing.assert_array_equal(found["largest"], x.max(1))
    with np.errstate(invalid="ignore"):
        totals = x.sum(1)
    np.testing.assert_allclose(found["total"], totals, rtol=1e-5)


def test_maximum_of_a_row_with_nan_is_nan():
    """Rows that take four vectors at a time, single vectors, and a remainder."""
    arrays = {"x": Array("x", (147, 147), "float32")}
    writes = {"largest": Array("largest", (147, 1), "float32")}
    loop = formula_loop("test", arrays, writes, lambda old: {"largest": old["x"].largest()})
    x = np.random.default_rng(0).standard_normal((147, 147)).astype(np.float32)
    found = KernelCase(loop, {"x": x}).by_machine_code()
    np.testing.assert_array_equal(found["largest"], x.max(1))
    np.fill_diagonal(x, np.nan)
    assert np.isnan(KernelCase(loop, {"x": x}).by_machine_code()["largest"]).all()


def test_parts_of_rows_that_do_not_lie_one_behind_the_other():
    whole = Array("x", (6, 40), "float32")
    arrays = {"x": whole.sliced(1, 3, 36, 1), "y": whole.sliced(1, 0, 40, 1).permuted((0, 1))}
    writes = {"out": Array("out", (6, 33), "float32")}
    loop = formula_loop("test", {"x": arrays["x"]}, writes, lambda old: {"out": old["x"].exp()})
    check(loop)
    turned = Array("x", (40, 6), "float32").permuted((1, 0))
    writes = {"out": Array("out", (6, 40), "float32")}
    check(formula_loop("test", {"x": turned}, writes, lambda old: {"out": old["x"] * 2.0}))


def test_a_kernel_with_a_function_of_numpys_has_no_machine_code():
    arrays = {"x": Array("x", (6, 4), "float64")}
    writes = {"out": Array("out", (6, 4), "float64")}
    loop = formula_loop("test", arrays, writes, lambda old: {"out": old["x"].exp()})
    assert kernel_code(loop.op, loop.writes, "test") is None
