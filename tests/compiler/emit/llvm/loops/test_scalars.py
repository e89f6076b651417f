"""Machine code of LAIR's scalar operators, against PyTorch in float32."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support import operators
from support.lane_functions import LaneFunctions

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import Kind, NoMachineCodeError
from csrun.compiler.emit.llvm.loops.scalars import call_scalar, convert
from csrun.compiler.lair.functions import FORMULAS

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the operators")

#: Operators without machine code: NumPy's function is called for them.
WITHOUT = {
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh"),
    *(
        "tan",
        "floor_divide",
        "fmod",
        "remainder",
    ),
}
VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 20.0, -20.0, 90.0, -90.0, 1e-40, -1e-40]
VALUES += [3e38, -3e38, np.inf, -np.inf, np.nan]


def kinds_of(case):
    """Types of the operands: float32, except for masks."""
    return tuple("bool" if array.dtype == bool else "float32" for array in case.operands)


def options_of(case):
    return tuple(sorted(dict(case.properties).items()))


def function_of(case):
    def function(code, *args):
        is_mask = case.op.name.removeprefix("cirh.") in ("eq", "ne", "lt", "le", "gt", "ge")
        out = Kind("bool" if is_mask else "float32", args[0].kind.lanes)
        return call_scalar(code, case.op.name, options_of(case), args, out)

    return function


def has_code(case):
    kinds = [Kind(dtype) for dtype in kinds_of(case)]
    code = Code()
    try:
        function_of(case)(code, *(code.constant(1, kind) for kind in kinds))
    except NoMachineCodeError:
        return False
    return True


CASES = [
    case
    for case in operators.CASES
    if case.op.name in FORMULAS and all(array.dtype.kind in "fb" for array in case.operands)
    # Words are compared in test_half.py.
    if case.op.name not in ("cirh.narrow_half", "cirh.half_words")
]
COMPILED = {f"case_{n}": case for n, case in enumerate(CASES) if has_code(case)}


def test_only_these_operators_have_no_machine_code():
    names = {case.op.name.removeprefix("cirh.") for case in CASES if not has_code(case)}
    assert names == WITHOUT & {case.op.name.removeprefix("cirh.") for case in CASES}


@pytest.fixture(scope="module")
def functions():
    made = {name: function_of(case) for name, case in COMPILED.items()}
    return LaneFunctions(made, {name: kinds_of(case) for name, case in COMPILED.items()})


@pytest.mark.parametrize("name", COMPILED, ids=lambda name: str(COMPILED[name]))
def test_an_operator_is_pytorchs(functions, name):
    """Operands of the operator's case, and lists of numbers with infinities, NaN and both zeros."""
    case = COMPILED[name]
    own = [np.ravel(x) for x in np.broadcast_arrays(*case.operands)]
    check(functions, name, case, own)


@pytest.mark.parametrize("name", COMPILED, ids=lambda name: str(COMPILED[name]))
def test_an_operator_of_any_numbers_is_numpys(functions, name):
    """NaN, infinity and overflow, compared with the NumPy form."""
    case = COMPILED[name]
    values = [[True, False] if k == "bool" else VALUES for k in kinds_of(case)]
    own = [np.ravel(x) for x in np.meshgrid(*values)]
    own = [x.astype(kind) for x, kind in zip(own, kinds_of(case), strict=True)]
    found = functions(name, *own)
    with np.errstate(all="ignore"):
        wanted = np.asarray(case.op.formula(*own, **dict(case.properties)))
    wanted = np.broadcast_to(wanted, found.shape).astype(found.dtype)
    if "gelu" in case.op.name:
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        return
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-37)


def check(functions, name, case, own):
    found = functions(name, *own)
    tensors = [
        torch.from_numpy(np.array(x, kind)) for x, kind in zip(own, kinds_of(case), strict=True)
    ]
    wanted = case.peer(torch, *tensors)
    np.testing.assert_allclose(found, wanted.numpy().astype(found.dtype), rtol=2e-5, atol=2e-6)


CASTS = [
    ("bool", "float32"), ("bool", "int64"), ("float32", "bool"), ("float32", "float64"),
    ("float64", "float32"), ("int32", "int64"), ("int64", "int32"), ("int32", "float32"),
    ("int64", "float64"), ("int64", "bool"),
]  # fmt: skip


def test_casts_are_numpys():
    names = {f"{a}_{b}": (a, b) for a, b in CASTS}
    made = {n: lambda code, x, b=b: convert(code, x, b) for n, (_, b) in names.items()}
    functions = LaneFunctions(made, {n: (a,) for n, (a, _) in names.items()})
    values = np.array([0, 1, -1, 2, 100000, -7])
    for name, (before, after) in names.items():
        x = values.astype(before)
        if before.startswith("float"):
            x = np.concatenate([x, [np.nan, 0.3, 1e-60, -np.inf]]).astype(before)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(functions(name, x), x.astype(after), err_msg=name)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_other_types_add_multiply_and_compare_as_numpys(dtype):
    names = ("add", "subtract", "multiply", "maximum", "minimum", "less", "equal")
    made = {
        n: lambda code, x, y, n=n: call_scalar(
            code, n, (), (x, y), Kind("bool" if n in ("less", "equal") else dtype, 16)
        )
        for n in names
    }
    functions = LaneFunctions(made, dict.fromkeys(names, (dtype, dtype)))
    x, y = np.random.default_rng(1).integers(-9, 9, (2, 50)).astype(dtype)
    for name in names:
        np.testing.assert_array_equal(functions(name, x, y), getattr(np, name)(x, y))


def test_a_conversion_to_integers_has_no_machine_code():
    code = Code()
    with pytest.raises(NoMachineCodeError, match="conversion of float32 to int64"):
        convert(code, code.constant(1, Kind("float32")), "int64")
