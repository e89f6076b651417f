"""Scalar bodies of LAIR's operators: functions with NumPy's names, as instructions.

Each rounds as NumPy's does; formulas of CIRH's operators are traced to these functions.
"""

from collections.abc import Callable, Sequence
from functools import cache

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.elementary import Float32
from csrun.compiler.emit.llvm.lane_functions.half import CONVERSIONS
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue, NoMachineCodeError
from csrun.compiler.lair.formula_trace import FormulaCall, Number, Options, Symbol, Trace
from csrun.compiler.lair.functions import FORMULAS
from csrun.compiler.lair.operators import CAST, IDENTITY

_ARITHMETIC = {"add": ("fadd", "add"), "subtract": ("fsub", "sub"), "multiply": ("fmul", "mul")}
_COMPARISONS = {
    "equal": ("oeq", "eq"),
    "not_equal": ("une", "ne"),
    "less": ("olt", "lt"),
    "less_equal": ("ole", "le"),
    "greater": ("ogt", "gt"),
    "greater_equal": ("oge", "ge"),
}
#: Intrinsics that round once, or not at all.
_EXACT = {
    "absolute": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "rint",
}
_ELEMENTARY = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "logistic", "normal_cdf", "sin", "cos", "power"}
)
#: Order of types; an operator of two types computes in the wider one.
_WIDTHS = ("bool", "int8", "int32", "int64", "float32", "float64")


def call_scalar(
    code: Code, function: str, options: Options, args: Sequence[LaneValue], out: Kind
) -> LaneValue:
    """Return the value of a body's function: NumPy's, a formula, or a copy.

    Raises: NoMachineCodeError
    """
    if function in (CAST, IDENTITY):
        return convert(code, args[0], out.dtype)
    if function in FORMULAS:
        return convert(code, _Formula(code, function, options, args, out).value(), out.dtype)
    return convert(code, call_function(code, function, args), out.dtype)


def call_function(code: Code, function: str, args: Sequence[LaneValue]) -> LaneValue:
    """Return the value of one of NumPy's functions."""
    if function == "where":
        condition, *others = args
        return code.select(convert(code, condition, "bool"), *_alike(code, others))
    args = _alike(code, args)
    kind = args[0].kind
    if function in _COMPARISONS:
        return _compare(code, function, args)
    if function in ("maximum", "minimum"):
        return _extreme(code, function, args)
    if kind.dtype == "bool":
        raise NoMachineCodeError(f"{function} of booleans")
    if function in _ARITHMETIC:
        return code.op(_ARITHMETIC[function][0 if kind.is_float else 1], *args)
    if not kind.is_float:
        raise NoMachineCodeError(f"{function} of integers")
    if function in _EXACT:
        return code.call(_EXACT[function], args[0])
    if function in _ELEMENTARY:
        found: LaneValue = getattr(Float32(code, kind), function)(*args)
        return found
    if function not in _OTHERS:
        raise NoMachineCodeError(f"no machine code for {function}")
    return _OTHERS[function](code, args)


def convert(code: Code, x: LaneValue, dtype: str) -> LaneValue:
    """Convert a number to another type, as NumPy's unsafe casts do.

    Raises: NoMachineCodeError for float to integer, since NumPy does not define the result for NaN
    """
    kind = x.kind
    if kind.dtype == dtype:
        return x
    to = kind.of(dtype)
    if dtype == "bool":
        return code.compare("une" if kind.is_float else "ne", x, code.constant(0, kind))
    if kind.dtype == "bool":
        return code.convert("uitofp" if to.is_float else "zext", x, dtype)
    if kind.is_float and not to.is_float:
        raise NoMachineCodeError(f"conversion of {kind.dtype} to {dtype}")
    if not kind.is_float and to.is_float:
        return code.convert("sitofp", x, dtype)
    is_wider = _WIDTHS.index(dtype) > _WIDTHS.index(kind.dtype)
    if to.is_float:
        return code.convert("fpext" if is_wider else "fptrunc", x, dtype)
    return code.convert("sext" if is_wider else "trunc", x, dtype)


def _alike(code: Code, args: Sequence[LaneValue]) -> list[LaneValue]:
    """Convert operands to one type; a mask among numbers becomes a number."""
    widest = max((arg.kind.dtype for arg in args), key=_WIDTHS.index)
    if any(arg.kind.dtype not in ("bool", widest) for arg in args):
        raise NoMachineCodeError("operands of several types")
    return [convert(code, arg, widest) for arg in args]


def _compare(code: Code, function: str, args: Sequence[LaneValue]) -> LaneValue:
    of_floats, of_integers = _COMPARISONS[function]
    if args[0].kind.is_float:
        return code.compare(of_floats, *args)
    sign = "u" if args[0].kind.dtype == "bool" else "s"
    return code.compare(of_integers if of_integers in ("eq", "ne") else sign + of_integers, *args)


def _extreme(code: Code, function: str, args: Sequence[LaneValue]) -> LaneValue:
    """Return the maximum or minimum; NaN if either is. Of two zeros the second."""
    x, y = args
    name = "greater" if function == "maximum" else "less"
    found = code.select(_compare(code, name, (x, y)), x, y)
    return code.select(code.compare("uno", x, x), x, found) if x.kind.is_float else found


def _square(code: Code, args: Sequence[LaneValue]) -> LaneValue:
    return code.op("fmul", args[0], args[0])


def _negative(code: Code, args: Sequence[LaneValue]) -> LaneValue:
    return code.make(args[0].kind, f"fneg {args[0]}")


def _reciprocal(code: Code, args: Sequence[LaneValue]) -> LaneValue:
    return code.op("fdiv", code.constant(1.0, args[0].kind), args[0])


def _divide(code: Code, args: Sequence[LaneValue]) -> LaneValue:
    return code.op("fdiv", *args)


_OTHERS: dict[str, Callable[[Code, Sequence[LaneValue]], LaneValue]] = {
    "square": _square,
    "negative": _negative,
    "reciprocal": _reciprocal,
    "divide": _divide,
}


@cache
def _trace_of(operator: str, options: Options) -> Trace:
    op = FORMULAS[operator]
    return Trace(op.formula, len(op.get_irdl_definition().operands), options)


class _Formula:
    """Evaluation of an operator's formula, call by call."""

    def __init__(
        self, code: Code, operator: str, options: Options, args: Sequence[LaneValue], out: Kind
    ) -> None:
        self._code = code
        self._out = out
        self._trace = _trace_of(operator, options)
        self._values = dict(enumerate(args))

    def value(self) -> LaneValue:
        """Return the result."""
        for call in self._trace.calls:
            if call.function in CONVERSIONS:
                found = self._converted(call)
            else:
                found = call_function(self._code, call.function, self._args(call))
            self._values[call.result] = found
        return self._values[self._trace.result]

    def _converted(self, call: FormulaCall) -> LaneValue:
        """Convert a value to or from the 16-bit format that is in the call's numbers."""
        x, *numbers = call.args
        assert isinstance(x, Symbol), "constants are not converted"
        mantissa_bits, bias = (int(n) for n in numbers if not isinstance(n, Symbol))
        half = HalfFormat("", mantissa_bits, bias)
        return CONVERSIONS[call.function](self._code, half, self._symbol(x))

    def _args(self, call: FormulaCall) -> list[LaneValue]:
        """Return the arguments, with numbers in the type of the arrays."""
        symbols = [self._symbol(arg) for arg in call.args if isinstance(arg, Symbol)]
        dtypes = [arg.kind.dtype for arg in symbols if arg.kind.dtype != "bool"]
        kind = self._out.of(dtypes[0] if dtypes else self._out.dtype)
        found = iter(symbols)
        return [next(found) if isinstance(a, Symbol) else self._number(a, kind) for a in call.args]

    def _symbol(self, symbol: Symbol) -> LaneValue:
        if symbol.number in self._trace.zeros:
            return self._code.constant(0, self._out)
        value = self._values[symbol.number]
        if not symbol.suffix:
            return value
        if symbol.suffix == ".view('i1')" and value.kind.dtype == "bool":
            return self._code.convert("zext", value, "int8")
        raise NoMachineCodeError(f"a view of {value.kind.dtype}")

    def _number(self, number: Number, kind: Kind) -> LaneValue:
        if not kind.is_float and number != int(number):
            raise NoMachineCodeError("a fraction among integers")
        return self._code.constant(number, kind)
