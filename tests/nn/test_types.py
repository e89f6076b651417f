"""Element types: PyTorch's promotion, and refused combinations with the user's line."""

import operator
from itertools import product

import numpy as np
import pytest

from csrun import nn
from csrun.base.mode import RunMode
from csrun.nn.errors import TraceError
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of promotion")

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)
DTYPES = ("bool", "int32", "int64", "float32")


@pytest.fixture
def tracer():
    with Tracer("float32") as one:
        yield one


def operand(tracer, kind):
    """A tensor of a dtype and rank, or a number; and PyTorch's counterpart."""
    if not isinstance(kind, tuple):
        return kind, kind
    dtype, rank = kind
    ours = tracer.input(f"x{len(list(tracer.module.ops))}", (2,) * rank, dtype)
    return ours, torch.ones((2,) * rank, dtype=getattr(torch, dtype))


OPERANDS = [*product(DTYPES, (0, 2)), True, 3, 0.5]


@pytest.mark.parametrize("lhs", OPERANDS, ids=str)
def test_types_are_promoted_as_pytorch_promotes_them(tracer, lhs):
    for rhs, apply in product(OPERANDS, ARITHMETIC):
        (a, a_peer), (b, b_peer) = operand(tracer, lhs), operand(tracer, rhs)
        if not isinstance(a, nn.Tensor) and not isinstance(b, nn.Tensor):
            continue
        expected = str(torch.result_type(a_peer, b_peer)).removeprefix("torch.")
        if apply is operator.truediv:
            expected = "float32"
        if expected == "bool":
            with pytest.raises(TraceError, match="expected numbers, got two bool tensors"):
                apply(a, b)
        else:
            assert apply(a, b).dtype == expected, (lhs, rhs, apply)


@pytest.mark.parametrize("function", [nn.exp, nn.log, nn.sqrt, nn.sigmoid, nn.tanh])
def test_functions_of_integers_give_floats_where_pytorchs_do(tracer, function):
    x = tracer.input("x", (2, 3), "int32")
    peer = getattr(torch, function.__name__)(torch.ones(2, 3, dtype=torch.int32))
    assert function(x).dtype == str(peer.dtype).removeprefix("torch.") == "float32"


def test_sums_of_integers_are_int64_and_means_are_floats(tracer):
    x = tracer.input("x", (2, 3), "int32")
    assert nn.sum(x).dtype == "int64"
    assert nn.mean(x).dtype == "float32"


@pytest.mark.parametrize("function", [nn.relu, nn.gelu, nn.elu, nn.silu, nn.softplus, nn.clamp])
def test_activations_of_integers_are_refused_by_name(tracer, function):
    x = tracer.input("x", (2, 3), "int32")
    message = r"test_types.py:\d+: \w+: expected floats, got int32: use x.astype\('float32'\)"
    with pytest.raises(TraceError, match=message):
        function(x)


ARRAY = np.ones((2, 3))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda f: f + ARRAY, r"add: .* got an array of shape \[2, 3\]: .* from input_fn"),
        (lambda f: ARRAY * f, r"mul: .* got an array of shape \[2, 3\]"),
        (lambda f: f + "1", "add: expected a tensor of this model or a number, got '1'"),
        (lambda f: f - None, "sub: .* got None"),
        (
            lambda f: f.astype("int32") ** -1,
            "pow: integers cannot be raised to the negative power -1",
        ),
        (lambda f: f == None, "eq: expected a tensor of this model or a number, got None"),  # noqa: E711
        (lambda f: f > ARRAY, r"gt: .* got an array of shape \[2, 3\]"),
        (lambda f: nn.where(f, 1.0, 2.0), "where: the condition must be boolean"),
        (lambda f: nn.clamp(f), "clamp: min, max or both must be numbers, got None and None"),
        (lambda f: nn.clamp(f, min=f), "clamp: min, max or both must be numbers"),
        (lambda f: nn.maximum(1.0, 2), "maximum: expected a tensor of the model, got numbers"),
        (lambda f: nn.abs(f > 0), "abs: expected numbers, got bool"),
        (lambda f: f @ ARRAY, "expected a tensor of this model"),
        (lambda f: nn.relu(3.0), "relu: expected a tensor of the model, got 3.0"),
        (lambda f: nn.gelu(ARRAY), r"gelu: .* got an array of shape \[2, 3\]"),
        (lambda f: nn.exp(None), "exp: expected a tensor"),
        (lambda f: nn.sum([f, f]), "sum: expected a tensor"),
        (lambda f: nn.mean(2), "mean: expected a tensor"),
        (lambda f: nn.argmax(2), "argmax: expected a tensor"),
        (lambda f: nn.flatten(2), "flatten: expected a tensor"),
        (lambda f: nn.sum(f, axis=1.0), r"sum: axis 1.0 does not fit"),
        (lambda f: nn.sum(f, axis="all"), "sum: axis all does not fit"),
        (lambda f: nn.elu(f, float("inf")), "elu: alpha must be >= 0 and finite, got inf"),
        (lambda f: f.astype("float16"), "astype: element type must be one of"),
    ],
)
def test_a_mistake_is_refused_with_its_line(tracer, mistake, message):
    features = tracer.input("features", (2, 3), "float32")
    with pytest.raises(TraceError, match=rf"test_types.py:\d+: {message}|test_types.py.*{message}"):
        mistake(features)


def test_numbers_of_numpy_are_numbers(tracer):
    x = tracer.input("x", (2, 3), "int32")
    assert (np.float64(0.5) * x).dtype == (x + np.array(0.5)).dtype == "float32"
    assert (x * np.int64(2)).dtype == "int32"
    assert nn.sum(x, axis=[0, np.int64(1)]).shape == ()


VALUES = np.array([[-3, 0, 7], [5, 2, -1]], np.int32)
FLOATS = np.array([[-1.5, 0.25, 3.0], [np.inf, -np.inf, np.nan]], np.float32)


def as_type(x, dtype):
    """Cast of csrun or of PyTorch."""
    return x.to(getattr(torch, dtype)) if isinstance(x, torch.Tensor) else x.astype(dtype)


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x, f: x * 0.5,
        lambda m, x, f: 1 - x,
        lambda m, x, f: x / 2,
        lambda m, x, f: 0.1 * x + f,
        lambda m, x, f: x * x + x,
        lambda m, x, f: m.sigmoid(x),
        lambda m, x, f: m.exp(x) * f,
        lambda m, x, f: f**2,
        lambda m, x, f: f**3,
        lambda m, x, f: f**0.5,
        lambda m, x, f: f**-1,
        lambda m, x, f: f**-2,
        lambda m, x, f: x**2,
        lambda m, x, f: abs(f),
        lambda m, x, f: m.abs(x),
        lambda m, x, f: f**2.5,
        lambda m, x, f: 2.0**f,
        lambda m, x, f: x**3,
        lambda m, x, f: x**2.0,
        lambda m, x, f: 2**x**2,
        lambda m, x, f: m.pow(m.abs(f), x),
        lambda m, x, f: f > 0,
        lambda m, x, f: f * (f == f),
        lambda m, x, f: f != x,
        lambda m, x, f: x >= 2,
        lambda m, x, f: x < 0.5,
        lambda m, x, f: (x > 0) == (f <= 1),
        lambda m, x, f: m.where(f > 0, f, 0.0),
        lambda m, x, f: m.where(f > 0, 1.0, f),
        lambda m, x, f: m.where(x > 0, x, -1),
        lambda m, x, f: m.where(x > 0, x, f),
        lambda m, x, f: m.where(x[:, :1] > 0, f, f * 2),
        lambda m, x, f: m.where(f > 0, -0.0, 0.0),
        lambda m, x, f: m.maximum(f, f * 0),
        lambda m, x, f: m.minimum(x, x * 0 + 2),
        lambda m, x, f: m.clamp(f, -1.0, 0.5),
        lambda m, x, f: m.clamp(f, min=0.5),
        lambda m, x, f: m.sign(f),
        lambda m, x, f: m.sign(x) * m.sqrt(m.abs(f)),
        lambda m, x, f: m.rsqrt(x),
        lambda m, x, f: m.reciprocal(x),
        lambda m, x, f: as_type(f, "bool"),
        lambda m, x, f: as_type(m.clamp(m.where(f == f, f, 0.0), -9, 9), "int64") * x,
        lambda m, x, f: as_type(x > 0, "int32") + as_type(x, "bool"),
    ],
)
def test_programs_compute_what_pytorch_does(tmp_path, compute):
    from support.programs import Machine, options_of

    from csrun.compiler import compile_model

    with Tracer("float32") as tracer:
        x = tracer.input("x", VALUES.shape, "int32")
        f = tracer.input("f", FLOATS.shape, "float32")
        module = tracer.finish(RunMode.PREDICT, None, None, [("y", compute(nn, x, f))])
    executable = compile_model(module, tmp_path, options_of(run_mode=RunMode.PREDICT)).executable
    machine = Machine(executable, {})
    machine.predict((VALUES, FLOATS))
    expected = compute(torch, torch.from_numpy(VALUES), torch.from_numpy(FLOATS))
    found = machine.output("y")
    assert found.dtype.name == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
