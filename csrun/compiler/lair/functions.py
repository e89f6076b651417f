"""Elementwise functions as NumPy calls, from the formulas of the operators.

    x * logistic(x)

is traced once for each operator and its options; each function that it calls becomes a line of
text. A value reuses the array of a value that is no longer read, so formulas name no scratch
arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from math import copysign, isfinite

from csrun.cirh.dialect import FAMILIES
from csrun.cirh.ops.base import ElementwiseOp
from csrun.compiler.lair.formula_trace import (
    COMPARISONS,
    FormulaCall,
    Number,
    Options,
    Symbol,
    Trace,
    is_ufunc,
)

#: Functions that are faster in NumPy with a 0 of the element type than with Python's 0.
WITH_ZERO = COMPARISONS | {"maximum", "minimum"}
#: Floating-point operations per number, if not one.
FLOPS = {"logistic": 4, "normal_cdf": 17}


class Extra(Enum):
    """Array or constant that calls need besides operands and result."""

    ARRAY = auto()  # scratch, like the result
    MASK = auto()  # scratch, boolean
    ZEROS = auto()  # array of zeros: several times faster for NumPy's maximum than a scalar 0
    ZERO = auto()  # scalar 0 of the element type
    BITS = auto()  # integer type of the element type's size


@dataclass(frozen=True)
class NumpyCalls:
    """NumPy calls that compute a function.

    lines: {0}, {1} ... are the operands, then the result, then the extras.
    over: indices of the operands that the result may overwrite.
    arrays: indices of operands that must be arrays; others may be the text of a number.
    """

    lines: tuple[str, ...]
    extras: tuple[Extra, ...]
    flops: int
    over: tuple[int, ...]
    arrays: frozenset[int] = frozenset()
    ufunc: str | None = None  # the function, if the formula is a single NumPy function

    @property
    def needs_special(self) -> bool:
        """Return whether it calls functions of csrun.kernels.special."""
        return any("special." in line for line in self.lines)


#: Operators with a formula, by name.
FORMULAS: dict[str, type[ElementwiseOp]] = {
    op.name: op
    for family in FAMILIES
    for op in family.OPS
    if issubclass(op, ElementwiseOp) and op.has_formula()
}


@cache
def calls_of(operator: str, options: Options) -> NumpyCalls:
    """Return the calls of an operator's formula."""
    op = FORMULAS[operator]
    operands = range(len(op.get_irdl_definition().operands))
    over = tuple(n for n in operands if op.operand_name(n) in op.WRITES_OVER)
    return TraceWriter(Trace(op.formula, len(operands), options), over).calls()


@cache
def call_of(ufunc: str, operands: int) -> NumpyCalls:
    """Return the call of a NumPy function; its result may overwrite any operand."""
    args = ", ".join(f"{{{n}}}" for n in range(operands))
    return NumpyCalls((f"{ufunc}({args}, out={{{operands}}})",), (), 1, tuple(range(operands)))


class TraceWriter:
    """Writes the lines of a trace. Places are operands, then the result, then extras as needed."""

    def __init__(self, trace: Trace, over: Sequence[int]) -> None:
        self._trace = trace
        self._out = trace.operands
        self._over = tuple(over)
        self._arrays: set[int] = set()
        self._extras: list[Extra] = []
        self._free: list[int] = []
        self._places = {number: number for number in range(trace.operands)}
        self._last_read = {value: n for n, call in enumerate(trace.calls) for value in call.reads}

    def calls(self) -> NumpyCalls:
        """Return the lines, and the extras."""
        lines = [line for n, call in enumerate(self._trace.calls) for line in self._write(n, call)]
        flops = sum(FLOPS.get(call.function, 1) for call in self._trace.calls)
        extras, arrays = tuple(self._extras), frozenset(self._arrays)
        return NumpyCalls(tuple(lines), extras, flops, self._over, arrays, self._trace.ufunc)

    def _write(self, number: int, call: FormulaCall) -> Iterator[str]:
        dying = [v for v in call.reads if self._last_read[v] == number and self._is_written(v)]
        out = self._place_of_result(number, call, dying)
        args = [self._text(arg, call.function) for arg in call.args]
        match call.function:
            case "where":
                yield from self._where(number, call, args, out)
            case "normal_cdf":
                self._read_as_array(call.args[0])
                yield self._normal_cdf(args[0], out)
            case function if is_ufunc(function):
                yield f"{function}({', '.join(args)}, out={{{out}}})"
            case function:
                yield f"special.{function}({', '.join(args)}, {{{out}}})"
        self._places[call.result] = out
        self._free += [self._places[v] for v in dying if self._places[v] not in (out, self._out)]

    def _is_written(self, value: int) -> bool:
        """Return whether a value is in the result's array or in scratch."""
        return value >= self._trace.operands and value not in self._trace.zeros

    def _place_of_result(self, number: int, call: FormulaCall, dying: Sequence[int]) -> int:
        """Return a place for the result: a value that is no longer read, else the result's array,
        else scratch.
        """
        kind = Extra.MASK if call.is_mask else Extra.ARRAY
        if call.result == self._trace.result:
            return self._out
        over = [self._places[v] for v in dying if self._kind(self._places[v]) is kind]
        if over:
            return over[0]
        is_free = all(
            self._last_read.get(value, -1) <= number
            for value, place in self._places.items()
            if place in (*self._over, self._out)
        )
        return self._out if is_free and kind is Extra.ARRAY else self._take(kind)

    def _kind(self, place: int) -> Extra:
        return self._extras[place - self._out - 1] if place > self._out else Extra.ARRAY

    def _take(self, kind: Extra) -> int:
        """Return scratch of a kind: a free one, else a new one."""
        free = [place for place in self._free if self._kind(place) is kind]
        if free:
            self._free.remove(free[0])
            return free[0]
        self._extras.append(kind)
        return self._out + len(self._extras)

    def _shared(self, kind: Extra) -> str:
        """Return the place of an extra that is never written."""
        if kind not in self._extras:
            self._extras.append(kind)
        return f"{{{self._out + 1 + self._extras.index(kind)}}}"

    def _text(self, arg: Symbol | Number, function: str) -> str:
        if isinstance(arg, Symbol):
            if arg.number in self._trace.zeros:
                return self._shared(Extra.ZEROS)
            if arg.suffix:
                self._read_as_array(arg)
            return f"{{{self._places[arg.number]}}}{arg.suffix}"
        if arg == 0 and copysign(1, arg) > 0 and function in WITH_ZERO:
            return self._shared(Extra.ZERO)
        return repr(arg) if isfinite(arg) else f"float('{arg!r}')"

    def _normal_cdf(self, x: str, out: int) -> str:
        """Call normal_cdf with two scratch arrays, the first of which may be the result."""
        first = self._take(Extra.ARRAY) if out == self._out else out
        second = self._take(Extra.ARRAY)
        self._free += [place for place in (first, second) if place != out]
        return f"special.normal_cdf({x}, {{{out}}}, {{{first}}}, {{{second}}})"

    def _where(
        self, number: int, call: FormulaCall, args: Sequence[str], out: int
    ) -> Iterator[str]:
        """Return the lines of a `where`. A choice with 0 is a bitwise and, which is valid for
        infinity and NaN.

        NumPy's masked copies take 25 times as long, because their branches are mispredicted.
        """
        mask, x, y = args
        _, first, second = call.args
        into = f"{{{out}}}"
        is_over_y = isinstance(second, Symbol) and self._places[second.number] in (
            (*self._over, out) if out == self._out else (out,)
        )
        if not isinstance(first, Symbol) and not isinstance(second, Symbol):
            yield f"{into}.fill({y})"
            yield f"copyto({into}, {x}, where={mask})"
        elif not isinstance(first, Symbol) and first == 0:
            bits = self._shared(Extra.BITS)
            self._read_as_array(second)
            yield self._negated(number, call)
            yield f"multiply({y}.view({bits}), {mask}, out={into}.view({bits}))"
        elif not isinstance(first, Symbol) and y == into:
            yield f"copyto({into}, {x}, where={mask})"
        elif is_over_y:
            yield self._negated(number, call)
            yield f"special.where({mask}, {y}, {x}, {into})"
        else:
            yield f"special.where({mask}, {x}, {y}, {into})"

    def _read_as_array(self, arg: Symbol | Number) -> None:
        if isinstance(arg, Symbol) and arg.number < self._trace.operands:
            self._arrays.add(arg.number)

    def _negated(self, number: int, call: FormulaCall) -> str:
        condition = call.args[0]
        assert isinstance(condition, Symbol), "a condition is an array"
        is_own = self._is_written(condition.number) and self._last_read[condition.number] == number
        assert is_own, "a condition is negated in place: it is computed, and read once"
        mask = f"{{{self._places[condition.number]}}}"
        return f"logical_not({mask}, out={mask})"
