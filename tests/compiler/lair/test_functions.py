"""Calls that formulas are compiled to: results for any output array, and number of calls."""

import numpy as np
import pytest
from support import operators

from csrun.compiler.lair.formula_trace import Trace
from csrun.compiler.lair.functions import FORMULAS, Extra, TraceWriter, calls_of
from csrun.kernels import special

CONVERSIONS = {"cirh.narrow_half", "cirh.widen_half"}
CASES = [case for case in operators.CASES if case.op.name in FORMULAS]


def run(calls, operands, out):
    """Execute the calls as a program does."""
    made = {
        Extra.ARRAY: lambda: np.full_like(out, np.nan),
        Extra.MASK: lambda: np.zeros(out.shape, bool),
        Extra.ZEROS: lambda: np.zeros_like(out),
        Extra.ZERO: lambda: np.zeros((), out.dtype),
        Extra.BITS: lambda: np.dtype(f"i{out.itemsize}"),
    }
    places = {
        f"p{i}": x for i, x in enumerate([*operands, out, *(made[e]() for e in calls.extras)])
    }
    with np.errstate(all="ignore"):
        for line in calls.lines:
            exec(line.format(*places), {**vars(np), "special": special, **places})
    return out


def options_of(case):
    return tuple(sorted(dict(case.properties).items()))


@pytest.mark.parametrize("is_over_first", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_calls_compute_the_formula(case, is_over_first):
    operands = [np.array(x) for x in np.broadcast_arrays(*case.operands)]
    with np.errstate(all="ignore"):
        expected = np.asarray(case.op.formula(*operands, **dict(case.properties)))
    has_own_type = expected.dtype == bool or case.op.name in CONVERSIONS
    own = expected if has_own_type else expected.astype(operands[0].dtype)
    if is_over_first and own.dtype != operands[0].dtype:
        pytest.skip("masks and words cannot be written over numbers")
    out = operands[0] if is_over_first else np.full_like(own, 7)
    found = run(calls_of(case.op.name, options_of(case)), operands, out)
    np.testing.assert_allclose(found, own, rtol=1e-12, atol=1e-15)


CHOICES = {
    "of two values": lambda x, y: np.where(x > 0, x * 2, y - 1),
    "first or other": lambda x, y: np.where(x > y, x, y * y),
    "other or first": lambda x, y: np.where(y > 0.5, y, x),
    "other or computed": lambda x, y: np.where(x * y > 0, y, x + 1),
    "number or first": lambda x, y: np.where(y > 0, 3, x),
    "number or computed": lambda x, y: np.where(y > 0, 3, x * y),
    "zero or computed": lambda x, y: np.where(y > 0, 0, x * y),
    "zero or other": lambda x, y: np.where(x > 0, 0, y) + x,
    "value or number": lambda x, y: np.where(x > 0, x / y, 0.5),
    "numbers": lambda x, y: np.where(x > y, 1, 0.25) * x,
    "nested": lambda x, y: np.where(x > 1, 1, np.where(x < -1, -1, y)),
}


@pytest.mark.parametrize("is_over_first", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_numpys(name, dtype, is_over_first):
    numbers = np.random.default_rng(4)
    x, y = (numbers.standard_normal(50).astype(dtype) for _ in range(2))
    expected = CHOICES[name](x, y).astype(dtype)
    calls = TraceWriter(Trace(CHOICES[name], 2, ()), over=[0]).calls()
    out = x if is_over_first else np.empty_like(x)
    np.testing.assert_array_equal(run(calls, [x, y], out), expected)


def test_a_formula_calls_only_what_a_program_can():
    for formula in (lambda x: np.sum(x), lambda x: np.add.reduce(x), lambda x: np.add(x, x, out=x)):
        with pytest.raises(TypeError, match="a formula cannot call"):
            Trace(formula, 1, ())


#: Of each form: lines, arrays of scratch and masks. Counted by hand from the formula.
COSTS = {
    ("relu",): (1, 0, 0),
    ("threshold_backward", ("threshold", 0.0)): (3, 0, 1),
    ("sigmoid",): (1, 0, 0),
    ("sigmoid_backward",): (3, 1, 0),
    ("tanh_backward",): (3, 1, 0),
    ("silu",): (2, 1, 0),
    ("silu_backward",): (6, 2, 0),
    ("softplus",): (6, 1, 0),
    ("gelu", ("approximate", "none")): (2, 2, 0),
    ("gelu_cdf", ("approximate", "none")): (1, 2, 0),
    ("gelu_slope", ("approximate", "none")): (6, 1, 0),
    ("gelu_backward", ("approximate", "none")): (8, 2, 0),
    ("gelu", ("approximate", "tanh")): (8, 1, 0),
    ("gelu_cdf", ("approximate", "tanh")): (7, 1, 0),
    ("gelu_slope", ("approximate", "tanh")): (7, 1, 0),
    ("gelu_backward", ("approximate", "tanh")): (14, 3, 0),
    ("elu", ("alpha", 1.0), ("scale", 1.0)): (6, 1, 0),
    ("elu_backward", ("alpha", 1.0), ("scale", 1.0)): (4, 1, 1),
    ("leaky_relu", ("negative_slope", 0.1)): (2, 1, 0),
    ("hardtanh", ("min_val", -1.0), ("max_val", 1.0)): (2, 0, 0),
}


@pytest.mark.parametrize("form", COSTS, ids=lambda form: "-".join(map(str, form)))
def test_passes_over_memory_and_scratch_stay_few(form):
    name, *options = form
    calls = calls_of(f"cirh.{name}", tuple(options))
    arrays, masks = (calls.extras.count(kind) for kind in (Extra.ARRAY, Extra.MASK))
    assert (len(calls.lines), arrays, masks) == COSTS[form]
