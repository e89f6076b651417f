"""Matrix products of a program in machine code: multithreaded, with inputs, or left to NumPy."""

import weakref

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")

from csrun.compiler.emit.llvm.module import common_text
from csrun.executable import machine_code
from csrun.executable.arrays import empty
from csrun.executable.bound_kernel import Workspace
from csrun.executable.bound_product import InputProduct, ProductBinder
from csrun.executable.kernel_signature import KernelArray, ProductSignature
from csrun.executable.products import AVX2, PACKED_BYTES, SCRATCH_BYTES
from csrun.executable.team import BoundCall, Team

M, K, N = 100, 700, 300
RANDOM = np.random.default_rng(1)
A, B = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
EXACT = A.astype(np.float64) @ B


@pytest.fixture(scope="module")
def code():
    return machine_code.MachineCode([machine_code.build(common_text(AVX2))])


@pytest.fixture(params=[1, 2, 3])
def workspace(code, request):
    team = Team(code, request.param) if request.param > 1 else None
    scratch = [empty(SCRATCH_BYTES) for _ in range(request.param)]
    yield Workspace(code, team, scratch, empty(0), empty(PACKED_BYTES), AVX2)
    if team is not None:
        team.close()


def array(place, value, is_input=False):
    strides = tuple(stride // value.itemsize for stride in value.strides)
    return KernelArray(place, is_input, str(value.dtype), value.shape, strides)


def binder(workspace, a, b, out, adds=False, inputs=""):
    """Binder of out = a b; `inputs` names the operands that are passed with each call."""
    places = dict.fromkeys(("bound", "input"), 0)
    arrays = []
    for name, value in (("a", a), ("b", b), ("out", out)):
        kind = "input" if name in inputs.split() else "bound"
        arrays.append(array(places[kind], value, kind == "input"))
        places[kind] += 1
    return ProductBinder(workspace, ProductSignature(*arrays, adds), numpy_form)


def numpy_form(*arrays):
    return lambda *inputs: pytest.fail("left to NumPy")


def assert_near(found, wanted):
    bound = K * np.finfo(np.float32).eps * (np.abs(A).astype(np.float64) @ np.abs(B))
    assert (np.abs(found - wanted) <= bound).all()


BITS = {}  # of the product, which every number of threads has


def test_a_product_has_the_same_bits_with_any_number_of_threads(workspace):
    out = np.full((M, N), np.nan, np.float32)
    run = binder(workspace, A, B, out)(A, B, out)
    assert isinstance(run, BoundCall)
    for _ in range(5):
        run()
        assert BITS.setdefault("product", out.tobytes()) == out.tobytes()
    assert_near(out, EXACT)


@pytest.mark.parametrize("m", [500, 1152])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_large_product_has_the_same_bits_with_any_number_of_threads(workspace, m, is_transposed):
    """Threads divide columns and read A in place, pack it, or pack B if it is not larger."""
    shapes = (m, 1100), (1100, 1000)
    a, b = (np.random.default_rng(2).standard_normal(shape).astype("f") for shape in shapes)
    a = np.asfortranarray(a) if is_transposed else a
    out = np.full((m, 1000), np.nan, np.float32)
    run = binder(workspace, a, b, out)(a, b, out)
    code, has_team = workspace.code, workspace.team is not None
    columns = not is_transposed or (has_team and m == 500)
    assert (run.jobs[-1].function == code.address("product.columns")) == columns
    for _ in range(3):
        run()
        assert BITS.setdefault((m, is_transposed), out.tobytes()) == out.tobytes()
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)


def test_a_product_is_added(workspace):
    out = np.ones((M, N), np.float32)
    binder(workspace, A, B, out, adds=True)(A, B, out)()
    assert_near(out, EXACT + 1)


def test_an_input_is_where_each_batch_is(workspace):
    out = np.zeros((M, N), np.float32)
    run = binder(workspace, A, B, out, inputs="a")(B, out)
    assert isinstance(run, InputProduct)
    for sign in (1, -1):
        batches = [sign * A for _ in range(3)]
        for batch in batches:
            run(batch)
            assert_near(out, sign * EXACT)
    strided = np.repeat(A, 2, axis=1)[:, ::2]
    run(strided)
    assert_near(out, EXACT)


def test_other_types_are_left_to_numpy(workspace):
    left = []
    own = ProductBinder(
        workspace,
        ProductSignature(*(array(n, x.astype(np.float64)) for n, x in enumerate((A, B, EXACT)))),
        lambda *arrays: left.append,
    )
    run = own(A.astype(np.float64), B.astype(np.float64), EXACT.copy())
    assert not isinstance(run, BoundCall)
    assert run == left.append


def test_batches_that_were_multiplied_are_let_go(workspace):
    out = np.zeros((M, N), np.float32)
    run = binder(workspace, A, B, out, inputs="a")(B, out)
    batch = A.copy()
    let_go = weakref.ref(batch)
    run(batch)
    del batch
    assert let_go() is None
