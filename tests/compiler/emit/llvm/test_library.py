"""Machine code of the kernel library, against PyTorch; arrays end at guard pages."""

import warnings

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array, normal, wide

from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels import normalization
from csrun.compiler.kernels.dropout import DropoutMask, Uniform
from csrun.compiler.kernels.embedding import Lookup, LookupBackward
from csrun.compiler.kernels.rotary import Rotary
from csrun.compiler.kernels.softmax import Softmax
from csrun.compiler.kernels.vocab_shards import LookupPart, LookupPartBackward
from csrun.executable import StepState, machine_code
from csrun.kernels import random as draws
from csrun.kernels import rotary

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")

SIZES = [(1, 1), (5, 5), (3, 17), (40, 40), (1, 300), (129, 32), (17, 1), (2, 147)]


# Norms.


def norm(name, rows, size):
    """Forward and backward kernels of a norm."""
    x, weight, bias = array("x", rows, size), array("weight", size), array("bias", size)
    statistics = [array(key, rows) for key in (["mean", "rstd"] if "layer" in name else ["rrms"])]
    parts = (weight, bias) if "layer" in name else (weight,)
    gradients = [array("dx", rows, size), *(array(f"d{a.name}", size) for a in parts)]
    forward = normalization.Norm(
        "norm",
        (x, *parts),
        (array("out", rows, size), *statistics),
        normalization.FORWARD[name],
        1e-5,
        Phase.FORWARD,
    )
    backward = normalization.Norm(
        "norm",
        (array("grad", rows, size), x, *statistics, weight),
        tuple(gradients),
        normalization.BACKWARD[f"{name}_backward"],
        None,
        Phase.BACKWARD,
    )
    return forward, backward


@pytest.mark.parametrize("name", normalization.FORWARD)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_norms_and_their_gradients(name, size):
    values = {"x": normal(*size) * 3 + 2, "grad": normal(*size, seed=1)}
    values |= {"weight": normal(size[1]), "bias": normal(size[1], seed=1)}
    leaves = [v.requires_grad_() for v in wide(*(values[k] for k in ("x", "weight", "bias")))]
    if "layer" in name:
        out = torch.nn.functional.layer_norm(leaves[0], size[1:], *leaves[1:], eps=1e-5)
    else:
        del leaves[2]
        out = torch.nn.functional.rms_norm(leaves[0], size[1:], leaves[1], eps=1e-5)
    out.backward(*wide(values["grad"]))
    forward, backward = norm(name, *size)
    found = LibraryCase(forward, values).in_all_ways()
    np.testing.assert_allclose(found["out"], out.detach(), rtol=2e-6, atol=4e-6)
    found = LibraryCase(backward, values | found).in_all_ways()
    for key, leaf in zip(("dx", "dweight", "dbias"), leaves, strict=False):
        scale = np.abs(leaf.grad.numpy()).max() + 1
        np.testing.assert_allclose(found[key], leaf.grad, atol=3e-6 * scale, err_msg=key)


@pytest.mark.parametrize("name", normalization.FORWARD)
def test_a_norm_keeps_no_row_in_scratch(name):
    for kernel in norm(name, 4, 1000):
        assert library_code(kernel, "kernel").scratch_bytes < 1000


@pytest.mark.parametrize(("size", "is_ahead"), [(1000, True), (100, False), (1 << 15, False)])
def test_the_next_row_is_prefetched_if_it_is_long_and_fits_in_a_cache(size, is_ahead):
    forward, backward = norm("cirh.native_layer_norm", 4, size)
    assert ("llvm.prefetch.p0" in library_code(forward, "kernel").declared) == is_ahead
    assert "llvm.prefetch.p0" not in library_code(backward, "kernel").declared  # two arrays of rows


def test_a_row_of_a_norm_that_is_not_finite_leaves_the_others_alone():
    values = {"x": normal(4, 20), "weight": normal(20), "bias": normal(20)}
    values["x"][1, 3], values["x"][2, 19] = np.inf, np.nan
    forward, _ = norm("cirh.native_layer_norm", 4, 20)
    found = LibraryCase(forward, values).run()
    assert np.isnan(found["out"][1:3]).all()
    assert np.isfinite(found["out"][[0, 3]]).all()


# Softmax.


def softmax_kernel(name, rows, size, dtype="float32", after=1):
    operands = ("grad", "y") if name.endswith("backward") else ("x",)
    arrays = [array(key, rows, size, after, dtype=dtype) for key in (*operands, "out")]
    return Softmax("softmax", name, tuple(arrays[:-1]), arrays[-1], Phase.FORWARD)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_softmax_and_its_gradient(name, size):
    x, grad = normal(*size, seed=2) * 4, normal(*size, seed=3)
    (leaf,) = (value.requires_grad_() for value in wide(x))
    out = getattr(torch, name)(leaf, 1)
    out.backward(*wide(grad))
    found = LibraryCase(softmax_kernel(name, *size), {"x": x[..., None]}).in_all_ways()["out"]
    np.testing.assert_allclose(found[..., 0], out.detach(), rtol=1e-6, atol=1e-6)
    values = {"grad": grad[..., None], "y": found}
    found = LibraryCase(softmax_kernel(f"{name}_backward", *size), values).in_all_ways()["out"]
    np.testing.assert_allclose(found[..., 0], leaf.grad, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_large_and_infinite_numbers_is_that_of_pytorch(name):
    x = normal(7, 21)
    x[1] *= 1e4
    x[2] += 1e4
    x[3, ::2] = -np.inf
    x[4, 20] = np.inf
    x[5, 3] = np.nan
    x[6] = -np.inf
    wanted = getattr(torch, name)(torch.from_numpy(x), 1)
    found = LibraryCase(softmax_kernel(name, 7, 21), {"x": x[..., None]}).run()["out"]
    np.testing.assert_allclose(found[..., 0], wanted, rtol=2e-6, atol=1e-37)


@pytest.mark.skipif("+avx512f" not in machine_code.host(), reason="the CPU has no AVX-512")
@pytest.mark.parametrize("name", ["softmax", "softmax_backward", "log_softmax"])
def test_bits_do_not_depend_on_the_vectors_of_the_cpu(name, monkeypatch):
    x = normal(9, 147, 1) * 30
    values = {"x": x, "grad": normal(9, 147, 1, seed=1), "y": x}
    kernel = softmax_kernel(name, 9, 147)
    by_host = LibraryCase(kernel, values).run()["out"]
    binding, _ = machine_code._target()

    def avx2():
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(cpu="haswell", opt=2, reloc="pic", jit=True)
        return binding, machine

    monkeypatch.setattr(machine_code, "_target", avx2)
    monkeypatch.setattr(machine_code, "host", lambda: "haswell +avx2,+fma")
    by_avx2 = LibraryCase(kernel, values).run()["out"]
    np.testing.assert_array_equal(by_avx2.view(np.int32), by_host.view(np.int32))


# Embedding.


@pytest.mark.parametrize(
    ("size", "dtype"),
    [((1, 1), "int64"), ((5, 5), "int32"), ((40, 17), "int64"), ((6, 300), "int64")],
)
def test_rows_of_a_table(size, dtype):
    indices = np.random.default_rng(size[0]).integers(0, 9, size[0])
    arrays = array("w", 9, size[1]), array("i", size[0], dtype=dtype), array("out", *size)
    values = {"w": normal(9, size[1]), "i": indices}
    found = LibraryCase(Lookup("lookup", *arrays, True), values).in_all_ways()
    np.testing.assert_array_equal(found["out"], values["w"][indices])


@pytest.mark.parametrize(
    ("rows", "size", "padding", "adds"),
    [
        (3, (1, 1), -1, False),
        (700, (5, 5), 2, True),
        (9, (40, 17), 2, False),
        (9, (33, 40), -1, True),
        (700, (40, 17), -1, False),
        (700, (16, 300), 2, False),
    ],
)
def test_the_gradient_of_a_table(rows, size, padding, adds):
    random = np.random.default_rng([rows, *size])
    indices = random.integers(0, rows, size[0])
    indices[: size[0] // 2] = random.integers(0, 3, size[0] // 2)
    grad, out = normal(*size), normal(rows, size[1])
    arrays = array("g", *size), array("i", size[0], dtype="int64"), array("out", rows, size[1])
    kernel = LookupBackward("lookup", *arrays, padding, adds)
    found = LibraryCase(kernel, {"g": grad, "i": indices, "out": out}).in_all_ways()["out"]
    (wanted,) = wide(out * adds)
    wanted += torch.ops.aten.embedding_dense_backward(
        *wide(grad), torch.from_numpy(indices), rows, padding, False
    )
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rows", [5, 600])
def test_shards_of_a_table(rows):
    count, size, first = 40, 21, 7
    indices = np.random.default_rng(1).integers(0, 2 * rows, count)
    table, before, grad = normal(rows, size), normal(count, size), normal(count, size, seed=1)
    inside = (indices >= first) & (indices < first + rows)
    weight, i = array("w", rows, size), array("i", count, dtype="int64")
    out = array("out", count, size)
    values = {"w": table, "i": indices, "before": before, "g": grad}
    picked = table[np.clip(indices - first, 0, rows - 1)]
    for old, given in ((None, None), (out, before), (array("before", count, size), None)):
        kernel = LookupPart("part", weight, i, old, out, first, None)
        found = LibraryCase(
            kernel, values if given is None else values | {"out": given}
        ).in_all_ways()
        wanted = np.where(inside[:, None], picked, 0 if old is None else before)
        np.testing.assert_array_equal(found["out"], wanted)
    for padding in (-1, first + 2, 0):
        kernel = LookupPartBackward(
            "part", array("g", count, size), i, array("dw", rows, size), padding, first=first
        )
        found = LibraryCase(kernel, values).in_all_ways()["dw"]
        wanted = np.zeros((rows, size))
        counts = inside & (indices != padding)
        np.add.at(wanted, indices[counts] - first, grad[counts].astype("float64"))
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


# Random masks and numbers.


STATES = [
    StepState(index=3, rows=9),
    StepState(index=7, first_sample=4, rows=5),
    StepState(index=1 << 31, first_sample=2, rows=1000),
    StepState(),
]


def assert_drawn_as_by_numpy(kernel, draw, numbers):
    """Assert that the draws of several steps are NumPy's.

    numbers: arguments of `draw` between its scratch and the keys
    """
    seed, out = 0xFEDCBA9876543210, kernel.writes[0]
    matrix = np.empty(kernel.matrix.shape, out.dtype)
    words = np.empty(kernel.scratch[0].shape, "u8")
    draw = draw(matrix, words, *numbers, draws.round_keys(seed))
    case = LibraryCase(kernel, {})
    for step in STATES:
        with warnings.catch_warnings(action="ignore"):  # of a step without samples
            draw(step)
        scope = {"step": step, "runtime": type("Runtime", (), {"seed": seed})}
        found = case.in_all_ways(*(eval(text, scope) for text in case.code.numbers))[out.name]
        np.testing.assert_array_equal(found.reshape(matrix.shape), matrix)


SAMPLES = pytest.mark.parametrize("rows", [1, 0])


@SAMPLES
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (4, 64), (3, 65), (3, 17, 5), (2, 300), (2, 4096 + 1), (2, 4096 + 68)],
    ids=str,
)
def test_masks_have_the_bits_of_the_numpy_form(shape, rows):
    rate, stream = 0.3, 11
    kernel = DropoutMask("dropout", array("mask", *shape, dtype="bool"), rate, stream, rows)
    draw = draws.MaskDraw if rows else draws.FixedMaskDraw
    assert_drawn_as_by_numpy(kernel, draw, (draws.threshold_of(rate), stream))


@SAMPLES
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (4, 64), (3, 33), (3, 17, 5), (2, 150), (2, 2048 + 1), (2, 2048 + 34)],
    ids=str,
)
def test_uniform_numbers_have_the_bits_of_the_numpy_form(shape, rows):
    kernel = Uniform("noise", array("numbers", *shape), 11, rows)
    assert_drawn_as_by_numpy(kernel, draws.UniformDraw if rows else draws.FixedUniformDraw, (11,))


# Rotary.


@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize(
    ("shape", "dim", "size"),
    [((1, 1, 1, 2), 1, 2), ((2, 3, 2, 10), 1, 6), ((2, 2, 5, 80), 2, 68), ((4, 34), 0, 34)],
    ids=str,
)
def test_rotary_embedding(shape, dim, size, is_interleaved):
    """On a view: the heads of three projections in one array."""
    (*outer, last), joined = shape, array("x", *shape[:-1], 3 * shape[-1])
    x, out = joined.sliced(len(outer), last, 2 * last), array("out", *shape)
    kernel = Rotary("rotary", x, out, dim, size, 1e4, is_interleaved, False, Phase.FORWARD)
    axes = len(shape) - 2 - dim
    factors = rotary.rotation_factors(shape[dim], size, 1e4, False, "float32", axes)
    constants = [factors] if is_interleaved else rotary.cosines_and_sines(factors)
    value = normal(*shape)
    found = LibraryCase(kernel, {"x": value}, constants).in_all_ways()["out"]
    wanted, factors = value.astype("float64"), factors.astype("complex128")
    if is_interleaved:
        rotary.rotate_pairs(value.astype("float64"), wanted, factors)
    else:
        parts = rotary.cosines_and_sines(factors)
        scratch = np.empty((*shape[1:-1], size // 2) if dim else (*outer, size // 2))
        rotary.rotate_halves(value.astype("float64"), wanted, *parts, scratch)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


# Kernels without machine code.


def test_no_machine_code():
    assert library_code(softmax_kernel("softmax", 4, 8, "float64"), "kernel") is None
    assert library_code(softmax_kernel("softmax", 4, 8, after=3), "kernel") is None
    assert library_code(softmax_kernel("softmax", 0, 8), "kernel") is None
    assert library_code(norm("cirh.native_layer_norm", 0, 3)[1], "kernel") is None
    halves = [array(key, 4, 8, dtype="float16") for key in ("w", "out")]
    indices = array("i", 4, dtype="int64")
    assert library_code(Lookup("lookup", halves[0], indices, halves[1], True), "kernel") is None
    x, out = array("x", 8, 4).permuted((1, 0)), array("out", 4, 8)
    for is_interleaved in (False, True):
        kernel = Rotary("rotary", x, out, 0, 4, 1e4, is_interleaved, False, Phase.FORWARD)
        assert library_code(kernel, "kernel") is None
