"""Attention in machine code: against PyTorch and the NumPy form in float64, between guard pages."""

import ctypes
from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.attention_code import build
from support.machine_code import Guarded, array_over

from csrun.compiler.emit.llvm.attention import attention_code
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.attention import Attention, WeightDropout
from csrun.executable import machine_code
from csrun.executable.bind import StepState
from csrun.executable.products import AVX2, AVX512, tile_of
from csrun.kernels import attention, random

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of attention")

RESULTS = ("out", "sums", "dq", "dk", "dv")
LOWEST = np.finfo(np.float32).min  # logarithm of the sum of a row that sees nothing
SCALE, SEED = 0.3, 0x123456789ABCDEF
STEP = StepState(index=7, first_sample=3, rows=5)  # its last samples are padding


class Case:
    """Forward and backward kernels of an attention.

    sizes: of query [B, H, T, E], key [B, H, S, E], value [B, H, S, F]. mask: values of a shape
    that broadcasts. joined: query, key and value are slices of one projection [B, T, 3, H, E]
    """

    def __init__(
        self, *sizes, mask=None, causal=False, rate=None, joined=False, factor=1.0, dtype="float32"
    ):
        self.outer, (self.queries, self.keys, self.size, self.value_size) = sizes[:2], sizes[2:]
        self.causal, self.mask = causal, mask
        self.dropout = None if rate is None else WeightDropout(rate, 11)
        self.arrays = {name: Array(name, shape, dtype) for name, shape in self.shapes().items()}
        if joined:
            self.join()
        self.values = {a.name: normal(*a.whole) for a in self.arrays.values()}
        for name in "qk":
            self.values[self.arrays[name].name] *= np.float32(factor)
        options = {"causal": causal, "scale": SCALE, "dropout": self.dropout, "mask": None}
        if mask is not None:
            whole = Array("mask", mask.shape, mask.dtype.name)
            options["mask"] = whole.expanded((*self.outer, self.queries, self.keys))
            self.arrays["mask"], self.values["mask"] = options["mask"], mask
        forward, backward = self.of("q k v out sums"), self.of("grad q k v out sums")
        self.kernels = [
            Attention("", forward[:3], forward[3:], phase=Phase.FORWARD, **options),
            Attention("", backward, self.of("dq dk dv"), phase=Phase.BACKWARD, **options),
        ]

    def of(self, names):
        return tuple(self.arrays[name] for name in names.split())

    def shapes(self):
        query = *self.outer, self.queries, self.size
        key, value = ((*self.outer, self.keys, size) for size in (self.size, self.value_size))
        out = *self.outer, self.queries, self.value_size
        slopes = {"dq": query, "dk": key, "dv": value, "grad": out}
        return {"q": query, "k": key, "v": value, "out": out, "sums": query[:3], **slopes}

    def join(self):
        (samples, heads), length, size = self.outer, self.queries, self.size
        for name in ("", "d"):
            whole = Array(f"{name}joined", (samples, length, 3, heads, size), "float32")
            for number, of in enumerate("qkv"):
                self.arrays[name + of] = whole.selected(2, number).permuted((0, 2, 1, 3))
        for name in ("out", "grad"):
            whole = Array(name, (samples, length, heads, size), "float32")
            self.arrays[name] = whole.permuted((0, 2, 1, 3))

    def view(self, name):
        array = self.arrays[name]
        return array_over(self.values[array.name].reshape(-1).view(np.uint8), array)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def masked(*shape, kind):
    """Mask that hides all keys from the first row."""
    values = normal(*shape)
    if kind == "added":
        values[..., 0, :] = -np.inf
        return values
    values[..., 0, :] = -1
    return values > 0


CASES = {
    "one query": Case(1, 2, 1, 1, 8, 8),
    "few": Case(2, 3, 5, 5, 8, 8, causal=True),
    "ragged": Case(1, 2, 130, 130, 17, 17, joined=True),
    "ragged, causal": Case(1, 2, 130, 130, 17, 64, causal=True),
    "fewer keys": Case(2, 1, 130, 5, 64, 17, causal=True),
    "more keys": Case(1, 2, 5, 130, 64, 8, causal=True),
    "many keys": Case(1, 1, 70, 300, 8, 17),
    "parts of a projection": Case(2, 3, 66, 66, 64, 64, causal=True, joined=True),
    "blocks of keys": Case(1, 2, 530, 530, 8, 17, causal=True),
    "scores of 1e4": Case(1, 2, 40, 40, 8, 8, factor=100.0, causal=True),
    "kept": Case(2, 3, 20, 37, 8, 8, mask=masked(2, 3, 20, 37, kind="kept")),
    "kept keys": Case(2, 3, 20, 32, 8, 8, mask=~masked(2, 1, 1, 32, kind="kept")),
    "kept queries": Case(2, 3, 20, 21, 8, 8, mask=masked(2, 1, 20, 1, kind="kept"), causal=True),
    "added": Case(2, 3, 20, 37, 8, 8, mask=masked(2, 3, 20, 37, kind="added")),
    "added, causal": Case(2, 3, 70, 70, 8, 8, mask=masked(1, 1, 70, 70, kind="added"), causal=True),
    "dropout, causal": Case(2, 3, 130, 130, 8, 8, rate=0.1, causal=True),
    "dropout, a mask": Case(4, 1, 9, 70, 8, 8, rate=0.5, mask=masked(4, 1, 9, 70, kind="kept")),
}


@pytest.fixture(scope="module")
def machine():
    return Machine()


class Machine:
    """Object file with the kernels of all cases; codes: by case."""

    def __init__(self, names=tuple(CASES), tile=None):
        self.codes = {
            name: [attention_code(k, f"case{n}.{k.phase.name}", tile) for k in CASES[name].kernels]
            for n, name in enumerate(names)
        }
        self._code = build([*chain(*self.codes.values())], tile)

    def run(self, name, bounds=None, at_end=True):
        """Return a case's results; both kernels run on the pairs between these bounds."""
        case = CASES[name]
        memory = {n: Guarded(value.nbytes, at_end) for n, value in case.values.items()}
        for n, value in case.values.items():
            memory[n].memory[:] = value.reshape(-1).view(np.uint8)
        for code in self.codes[name]:
            arrays = [array_over(memory[a.name].memory, a) for a in code.parameters]
            self._call(code, arrays, bounds or (0, code.rows), at_end)
        roles = {role: case.arrays[role] for role in RESULTS}
        return {role: array_over(memory[a.name].memory, a).copy() for role, a in roles.items()}

    def _call(self, code, arrays, bounds, at_end):
        runtime = SimpleNamespace(seed=SEED)
        numbers = [eval(text, {"step": STEP, "runtime": runtime}) for text in code.numbers]
        scratch = Guarded(code.scratch_bytes, at_end)
        scratch.memory[:] = 0xFF  # NaN
        places = [*arrays, np.array([*numbers, 0.0]), scratch.memory]
        addresses = (ctypes.c_void_p * len(places))(*(place.ctypes.data for place in places))
        types = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        run = self._code.function(code.name, *types)
        for first, last in pairwise(bounds):
            run(ctypes.addressof(addresses), first, last)


def by_numpy(case, dtype):
    """Results of the NumPy form."""
    shapes, rows = case.shapes(), min(7, case.queries)
    found = {n: np.full(shapes[n], np.nan, dtype) for n in RESULTS}
    q, k, v, grad = (case.view(n).astype(dtype) for n in ("q", "k", "v", "grad"))
    mask = None if case.mask is None else case.view("mask")
    later = attention.later(rows, dtype) if case.causal else None
    scratch = [np.empty((rows, n), dtype) for n in (case.size, case.keys, 1)]
    block = attention.ScoreBlock(SCALE, *scratch, later, np.empty((rows, case.keys), bool))
    if mask is not None and mask.dtype != bool:
        block = block._replace(unseen=None)
    saved = attention.AttentionResults(found["out"], found["sums"], block)
    draw = None
    if case.dropout is not None:
        words = np.empty((3, 2, rows, random.blocks_of(case.keys)), np.uint64)
        kept, keys = np.empty((rows, case.keys), bool), random.round_keys(SEED)
        draw = random.RunDraw(kept, words, case.dropout.rate, case.dropout.stream, keys).of(STEP)
    scratch = [np.empty((n, m), dtype) for n, m in ((rows, case.keys), k.shape[2:], v.shape[2:])]
    slopes = (found[n] for n in ("dq", "dk", "dv"))
    gradients = attention.AttentionGradients(saved, *slopes, *scratch)
    attention.attend(q, k, v, mask, saved, draw)
    attention.attend_backward(grad, q, k, v, mask, gradients, draw)
    np.maximum(found["sums"], LOWEST, out=found["sums"])
    return found


def by_pytorch(case):
    """Result and gradients of PyTorch in float64, without dropout."""
    leaves = [torch.from_numpy(case.view(n).astype(np.float64)).requires_grad_() for n in "qkv"]
    mask = None if case.mask is None else torch.from_numpy(case.view("mask").copy())
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    if case.causal:
        later = torch.ones(case.queries, case.keys, dtype=torch.bool).tril()
        mask = later if mask is None else combined(mask, later)
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(*leaves, attn_mask=mask, scale=SCALE)
    grad = torch.from_numpy(case.view("grad").astype(np.float64))
    slopes = torch.autograd.grad(out, leaves, grad)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *slopes), strict=True))


def combined(mask, later):
    return mask & later if mask.dtype == torch.bool else mask.masked_fill(~later, -torch.inf)


@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradients(machine, name):
    """No writes outside of the arrays, and bits do not depend on how pairs are divided."""
    run, case = machine.run(name), CASES[name]
    wanted, near = by_numpy(case, "float64"), by_numpy(case, "float32")
    if case.dropout is None:
        for role, value in by_pytorch(case).items():
            np.testing.assert_allclose(wanted[role], value, rtol=1e-9, atol=1e-9, err_msg=role)
    for role, value in wanted.items():
        # A weight is off by as much as its score is, in either form.
        is_any = value > LOWEST
        np.testing.assert_array_equal(run[role] > LOWEST, is_any)
        error = np.abs(near[role] - value).max(where=is_any, initial=0)
        most = 3 * error + 2e-6 * np.abs(value).max(where=is_any, initial=1)
        np.testing.assert_allclose(
            run[role][is_any], value[is_any], rtol=0, atol=most, err_msg=role
        )
    pairs = np.prod(case.outer)
    for count in {2, pairs}:
        bounds = sorted({0, *(pairs * n // count for n in range(1, count)), pairs})
        other = machine.run(name, bounds, at_end=False)
        for role in RESULTS:
            np.testing.assert_array_equal(other[role], run[role], err_msg=role)


def test_bits_do_not_depend_on_the_tile_of_products(machine):
    own, names = tile_of(machine_code.host()), ("ragged, causal", "blocks of keys")
    other = Machine(names, AVX2 if own == AVX512 else AVX512)
    for name in names:
        found, wanted = other.run(name), machine.run(name)
        for role in RESULTS:
            np.testing.assert_array_equal(found[role], wanted[role], err_msg=role)


OTHERS = {
    "another type": Case(1, 1, 4, 4, 8, 8, dtype="float64"),
    "no keys": Case(1, 1, 4, 0, 8, 8),
    "long vectors": Case(1, 1, 4, 4, 513, 8),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_has_no_machine_code(name):
    assert [attention_code(kernel, "test") for kernel in OTHERS[name].kernels] == [None, None]
