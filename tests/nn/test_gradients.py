"""Functions of csrun.nn, compiled: values and gradients of a step against PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from support.programs import Machine, options_of
from support.steps import Case as Split
from support.steps import one_step, parameters_of

from csrun import nn
from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.executable import AxisSlice, NumberRange
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the functions")
numbers = np.random.default_rng(17)
INF, NAN = np.inf, np.nan


def normal(*shape):
    return numbers.standard_normal(shape)


def positive(*shape):
    return numbers.uniform(0.5, 2.0, shape)


@dataclass(frozen=True)
class Case:
    """A function of parameters; `peer` is the PyTorch form where names or arguments differ."""

    ours: Callable
    operands: tuple[np.ndarray, ...]
    peer: Callable | None = None

    def theirs(self, *tensors):
        return (self.peer or self.ours)(torch, *tensors)


def case(ours, *operands, peer=None):
    return Case(ours, tuple(np.asarray(x, np.float64) for x in operands), peer)


TIES = [[0.5, -1.0, 2.0, 0.0], [0.5, 0.0, -2.0, 3.0]]
OTHERS = [[0.5, 1.0, -2.0, 0.0], [-0.5, 0.0, -2.0, 3.0]]
EDGES = [[NAN, 1.0, INF, -INF], [0.0, -0.0, 1.0, NAN]]

ELEMENTWISE = {
    "where": case(lambda m, a, b: m.where(a > b, a, b * a), normal(4, 3), normal(3)),
    "where a number": case(lambda m, a: m.where(a > 0, a * a, 0.0), TIES),
    "where else": case(lambda m, a: m.where(a <= 0, 1.0, a * 3), normal(2, 1, 3)),
    "where edges": case(lambda m, a: m.where(a == a, a, 0.0), EDGES),
    "minimum edges": case(lambda m, a, b: m.minimum(a, b), EDGES, TIES),
    "clamp below": case(lambda m, a: m.clamp(a, min=0.5), EDGES),
    "clamp crossed": case(lambda m, a: m.clamp(a, 1.0, -1.0), TIES),
    "abs": case(lambda m, a: m.abs(a), EDGES),
    "sign": case(lambda m, a: a * m.sign(a), TIES),
    "sign alone": case(lambda m, a: m.sign(a), TIES),
    "reciprocal": case(lambda m, a: m.reciprocal(a), EDGES),
    "rsqrt edges": case(lambda m, a: m.rsqrt(a), EDGES),
    "pow 2.5": case(lambda m, a: a**2.5, positive(3, 4)),
    "pow 0": case(lambda m, a: a**0.0, TIES),
    "pow -3": case(lambda m, a: a**-3, normal(3, 4)),
    "pow of a number": case(lambda m, a: 2.0**a, normal(3, 4)),
    "softshrink": case(
        lambda m, a: m.softshrink(a, 0.5),
        [
            [0.5, -0.5, INF, -INF],
            [0.0, -0.0, 1.0, -2.0],
        ],  # PyTorch's slope at NaN depends on the type
        peer=lambda m, a: m.nn.functional.softshrink(a, 0.5),
    ),
    "one value": case(lambda m, a: m.clamp(m.abs(a), 0.25), normal(1)),
    "none": case(lambda m, a: m.where(m.abs(a) > 1, a, 0.0), normal(0, 3)),
    "strided": case(lambda m, a: m.clamp(a[:, 1::2], -0.5, 0.5) * m.abs(a[:, ::2]), normal(3, 6)),
    "cast": case(
        lambda m, a: a * to(a > 0, "float32") + to(to(a, "int64"), "float32"), 3 * normal(3, 4)
    ),
}


SOFTMAX = {
    "softmax": case(lambda m, a: m.softmax(a, -1), normal(5, 7)),
    "softmax of axis 0": case(lambda m, a: m.softmax(a, 0), normal(5, 7)),
    "softmax of axis 1": case(lambda m, a: m.softmax(a, 1), 30 * normal(3, 4, 5)),
    "softmax of many": case(lambda m, a: m.softmax(a, -1), normal(2, 3, 4, 300)),
    "softmax of one": case(lambda m, a: m.softmax(a, 1), normal(3, 1)),
    "softmax of none": case(lambda m, a: m.softmax(a, 1), normal(0, 3)),
    "softmax of no value": case(lambda m, a: m.softmax(a, 1), normal(3, 0)),
    "softmax of a vector": case(lambda m, a: m.softmax(a, 0), normal(6)),
    "softmax strided": case(lambda m, a: m.softmax(a[:, ::2], 1), normal(3, 8)),
    "softmax edges": case(lambda m, a: m.softmax(a, 1), [[-INF, 0.0, 1.0], [NAN, 1.0, 2.0]]),
    "log softmax": case(lambda m, a: m.log_softmax(a, -1), normal(5, 7)),
    "log softmax of axis 0": case(lambda m, a: m.log_softmax(a, 0), 30 * normal(5, 7, 2)),
    "log softmax of many": case(lambda m, a: m.log_softmax(a, -1), normal(2, 3, 300)),
    "log softmax of its own": case(lambda m, a: m.exp(m.log_softmax(a, 1)) * a, normal(4, 3)),
    "log softmax strided": case(lambda m, a: m.log_softmax(a[:, 1:4], 1), normal(4, 5)),
}


NESTED = np.round(normal(2, 3, 4))


def places(x, most):
    """Integers in 0..most, computed from x."""
    return to(torch_or(x).clamp(torch_or(x).abs(x) * 2, 0, most), "int64")


def torch_or(x):
    return torch if isinstance(x, torch.Tensor) else nn


LOOKED_UP = {
    "amax": case(lambda m, a: m.amax(a, -1), TIES),
    "amax of axes": case(lambda m, a: keep(m.amax, a, (0, 2)), NESTED),
    "max of all": case(lambda m, a: m.max(a), TIES),
    "min of all": case(lambda m, a: m.min(a), NESTED),
    "sum of all": case(lambda m, a: m.sum(a * a), NESTED),
    "mean of all": case(lambda m, a: m.mean(a * a), NESTED),
    "amax of all": case(lambda m, a: m.amax(a, (0, 1, 2)), NESTED),
    "amax edges": case(lambda m, a: m.amax(a, 1), EDGES),
    "amin": case(lambda m, a: m.amin(a, 0), TIES),
    "amin of none": case(lambda m, a: m.amin(a, 1), normal(0, 3)),
    "max": case(lambda m, a: m.max(a, -1), NESTED, peer=lambda m, a: a.max(-1).values),
    "max kept": case(lambda m, a: keep(m.max, a, 1), NESTED, peer=lambda m, a: a.max(1, True)[0]),
    "min": case(lambda m, a: m.min(a, 0), NESTED, peer=lambda m, a: a.min(0).values),
    "max edges": case(lambda m, a: m.max(a, 1), EDGES, peer=lambda m, a: a.max(1).values),
    "gather": case(
        lambda m, a: m.gather(a, places(a, 3), -1),
        NESTED,
        peer=lambda m, a: a.gather(-1, places(a, 3)),
    ),
    "gather fewer": case(
        lambda m, a: m.gather(a, places(a[:1, :2], 1), 0),
        NESTED,
        peer=lambda m, a: a.gather(0, places(a[:1, :2], 1)),
    ),
    "gather strided": case(
        lambda m, a: m.gather(a[:, ::2], places(a[:, 1:], 1), 1),
        NESTED,
        peer=lambda m, a: a[:, ::2].gather(1, places(a[:, 1:], 1)),
    ),
    "index select": case(
        lambda m, a, b: m.index_select(a, places(b, 2), 1),
        NESTED,
        normal(5),
        peer=lambda m, a, b: a.index_select(1, places(b, 2)),
    ),
    "index select none": case(
        lambda m, a, b: m.index_select(a, places(b, 2), 0),
        NESTED,
        normal(0),
        peer=lambda m, a, b: a.index_select(0, places(b, 1)),
    ),
    "stack": case(lambda m, a, b: m.stack([a, b, a], 1), normal(2, 3), normal(2, 3)),
    "stack last": case(lambda m, a, b: m.stack([a, b * b], -1), normal(2, 3), normal(2, 3)),
}


def keep(function, x, axis):
    """Reduction that keeps axes of size 1."""
    return function(x, axis, True)


def to(x, dtype):
    """Cast of csrun or of PyTorch."""
    return x.to(getattr(torch, dtype)) if isinstance(x, torch.Tensor) else x.astype(dtype)


def slopes_of(cases):
    """Weight of each value in the loss."""
    found = {}
    for name, one in cases.items():
        value = one.theirs(*map(torch.from_numpy, one.operands))
        found[name] = numbers.uniform(0.5, 2.0, tuple(value.shape))
    return found


def compiled(cases, slopes, folder, precision):
    """Machine of a model whose loss is the weighted sum of all cases."""
    with Tracer(precision) as tracer:
        first = tracer.input("first", (2,), precision)
        tracer.input("second", (2,), "int32")
        total, outputs = nn.sum(first * 0.0, axis=0), []
        for name, one in cases.items():
            key = name.replace(" ", "_").replace("-", "m")
            with nn.scope(key):
                operands = [
                    tracer.parameter(f"x{i}", x.shape, nn.initializers.zeros(x.shape))
                    for i, x in enumerate(one.operands)
                ]
                value = one.ours(nn, *operands)
                slope = tracer.parameter("s", value.shape, nn.initializers.zeros(value.shape))
                outputs.append((key, value))
                weighted = value * slope
                if value.shape:
                    weighted = nn.sum(weighted, axis=tuple(range(len(value.shape))))
                total = total + weighted
        train_op = nn.SGD(0.1).minimize(total)
        module = tracer.finish(RunMode.TRAIN, total, train_op, outputs)
    executable = compile_model(module, folder, options_of()).executable
    values = {}
    for name, one in cases.items():
        key = name.replace(" ", "_").replace("-", "m")
        values |= {f"{key}/x{i}": x for i, x in enumerate(one.operands)}
        values[f"{key}/s"] = slopes[name]
    return Machine(executable, values)


#: How near values and gradients must be: relatively, and where they are near 0.
NEAR = {"float64": {"rtol": 1e-11, "atol": 1e-13}, "float32": {"rtol": 2e-5, "atol": 1e-6}}


def check(cases, folder, precision="float64"):
    near, slopes = NEAR[precision], slopes_of(cases)
    machine = compiled(cases, slopes, folder, precision)
    with np.errstate(all="ignore"):
        _, gradients = machine.train((np.zeros(2, precision), np.zeros(2, np.int32)))
    for name, one in cases.items():
        key = name.replace(" ", "_").replace("-", "m")
        operands = [x.astype(precision) for x in one.operands]
        leaves = [torch.from_numpy(x).requires_grad_() for x in operands]
        value = one.theirs(*leaves)
        found = machine.output(key)
        assert found.dtype == precision
        np.testing.assert_allclose(found, value.detach().numpy(), **near, err_msg=name)
        (value * torch.from_numpy(slopes[name].astype(precision))).sum().backward()
        for i, leaf in enumerate(leaves):
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            own = gradients.get(f"{key}/x{i}", np.zeros_like(operands[i]))
            np.testing.assert_allclose(own, grad.numpy(), **near, err_msg=name)


@pytest.mark.parametrize("precision", NEAR)
def test_elementwise_functions(tmp_path, precision):
    check(ELEMENTWISE, tmp_path, precision)


def test_softmax_in_one_tile_and_in_several(tmp_path, monkeypatch):
    check(SOFTMAX, tmp_path / "one")
    monkeypatch.setattr("csrun.compiler.kernels.softmax.TILE_BYTES", 256)
    check(SOFTMAX, tmp_path / "several")


def test_what_is_looked_up_and_what_is_largest(tmp_path):
    check(LOOKED_UP, tmp_path)


FEATURES = np.round(normal(8, 5), 1)
NUMBERS = numbers.integers(0, 5, (8, 3)).astype(np.int32)


def of_samples(features, labels):
    """Lookups within each sample and in a table, and maxima of each sample."""
    x = nn.Dense(5, use_bias=False, name="x")(features)
    own = nn.sum(nn.gather(x, labels, 1) ** 2, axis=1)
    with nn.scope("table"):
        table = x.tracer.parameter("w", (2, 5), nn.initializers.zeros((2, 5)))
    table = nn.sum(nn.index_select(table, labels[:, 1], 1), axis=0)
    return nn.mean(own * table + nn.amax(x, -1) + nn.softmax(x)[:, 0], axis=0), {}


def of_samples_by_torch(features, labels, x, table):
    x = features @ x
    own = (x.gather(1, labels) ** 2).sum(1)
    return (
        own * table.index_select(1, labels[:, 1]).sum(0) + x.amax(1) + x.softmax(1)[:, 0]
    ).mean()


@pytest.mark.parametrize(("rows", "minibatches"), [(8, 1), (8, 4), (5, 1), (5, 2)])
def test_samples_are_looked_up_however_the_batch_is_split(tmp_path, rows, minibatches):
    case = Split(of_samples, (FEATURES[:rows], NUMBERS[:rows]), minibatches, size=8)
    found = one_step(case, tmp_path)
    weights = {
        name: torch.from_numpy(value).requires_grad_()
        for name, value in parameters_of(case.compile(tmp_path).plan).items()
    }
    batch = torch.from_numpy(FEATURES[:rows]), torch.from_numpy(NUMBERS[:rows]).long()
    loss = of_samples_by_torch(*batch, weights["x/kernel"], weights["table/w"])
    loss.backward()
    assert found.result.loss == pytest.approx(loss.item(), rel=1e-12)
    for name, weight in weights.items():
        np.testing.assert_allclose(found.gradients[name], weight.grad, rtol=1e-10, atol=1e-13)


def test_the_largest_of_a_batch_is_not_one_of_its_padding(tmp_path):
    def model(features, labels):
        x = nn.Dense(5, use_bias=False, name="x")(features)
        ends = nn.amax(x, 0) - nn.amin(x, 0)
        return nn.sum(ends, 0), {"ends": ends}

    case = Split(model, (FEATURES[:5], NUMBERS[:5]), size=8)
    found = one_step(case, tmp_path)
    weight = parameters_of(case.compile(tmp_path).plan)["x/kernel"]
    x = FEATURES[:5] @ weight
    assert found.result.loss == pytest.approx((x.max(0) - x.min(0)).sum(), rel=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_ends_of_the_integers_are_found_beside_padding(tmp_path, dtype):
    limits = np.iinfo(dtype)
    integers = numbers.integers(limits.max - 99, limits.max, (5, 3), dtype, endpoint=True)
    integers[1] = limits.min, -1, limits.max

    def model(features, labels):
        weight = nn.sum(nn.Dense(1, use_bias=False)(features), (0, 1))
        lowest = nn.sum(nn.amin(labels[:, 1:], 0).astype("float64"), 0)
        own = nn.sum(nn.min(labels, 1).astype("float64"), 0)
        return weight * 0 + lowest + own / 4, {}

    found = one_step(Split(model, (FEATURES[:5], integers), size=8), tmp_path)
    theirs = torch.from_numpy(integers)
    lowest, own = theirs[:, 1:].amin(0).double().sum(), theirs.min(1).values.double().sum()
    assert found.result.loss == pytest.approx((lowest + own / 4).item(), rel=1e-15)


def test_an_index_that_is_computed_is_looked_at(tmp_path):
    def model(features, labels):
        x = nn.Dense(5, use_bias=False, name="x")(features)
        return nn.mean(nn.sum(nn.gather(x, labels + 1, 1), 1), 0), {}

    with pytest.raises(CsrunError, match=r"computed index 5 is out of range 0\.\.4"):
        one_step(Split(model, (FEATURES, NUMBERS)), tmp_path)


def test_the_streamers_are_told_what_is_looked_up(tmp_path):
    plan = Split(of_samples, (FEATURES, NUMBERS)).compile(tmp_path).plan
    whole, column = NumberRange(5), NumberRange(5, (AxisSlice(1, 1),))
    assert [spec.numbers for spec in plan.inputs] == [(), (whole, column)]
