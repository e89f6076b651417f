"""Tracing of formulas: the NumPy functions that a formula calls, in order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from csrun.cirh.math_functions import (
    half_words,
    logistic,
    narrow_half,
    normal_cdf,
    round_half,
    widen_half,
)

Number = float | int
Options = tuple[tuple[str, float | str], ...]

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


def is_ufunc(function: str) -> bool:
    """Return whether it is an elementwise NumPy function."""
    return isinstance(getattr(np, function, None), np.ufunc)


class Symbol(NDArrayOperatorsMixin):
    """Value of a formula during tracing; NumPy's functions and operators record a call."""

    def __init__(self, trace: "Trace", number: int, suffix: str = "") -> None:
        self._trace = trace
        self.number = number
        self.suffix = suffix  # text of a view

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **options: Any) -> "Symbol":
        if method != "__call__" or options:
            raise TypeError(f"a formula cannot call {ufunc.__name__}.{method} with {options}")
        return self._trace.call(ufunc.__name__, *args)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, options: Any
    ) -> "Symbol":
        if options or function not in (np.where, np.zeros_like):
            raise TypeError(f"a formula cannot call {function.__name__}: use ufuncs and where")
        return self._trace.call(function.__name__, *args)

    def view(self, dtype: str) -> "Symbol":
        """Return a view as another type."""
        return Symbol(self._trace, self.number, f".view({dtype!r})")

    def record(self, function: str, *numbers: Number) -> "Symbol":
        """Record a call of a function of csrun.kernels.special."""
        return self._trace.call(function, self, *numbers)


logistic.register(Symbol, lambda x: x.record("logistic"))
normal_cdf.register(Symbol, lambda x: x.record("normal_cdf"))
half_words.register(Symbol, lambda x, *numbers: x.record("half_words", *numbers))
round_half.register(Symbol, lambda x, *numbers: x.record("round_half", *numbers))
narrow_half.register(Symbol, lambda x, *numbers: x.record("narrow_half", *numbers))
widen_half.register(Symbol, lambda x, *numbers: x.record("widen_half", *numbers))


@dataclass(frozen=True)
class FormulaCall:
    """One call of a formula; `result` is the number of the value."""

    function: str
    args: tuple[Symbol | Number, ...]
    result: int

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the values that it reads."""
        return tuple(dict.fromkeys(arg.number for arg in self.args if isinstance(arg, Symbol)))

    @property
    def is_mask(self) -> bool:
        """Return whether the result is boolean."""
        return self.function in COMPARISONS


class Trace:
    """Calls of a formula; values are numbered, operands first."""

    def __init__(self, formula: Callable[..., Any], operands: int, options: Options) -> None:
        self.calls: list[FormulaCall] = []
        self.zeros: set[int] = set()
        self.operands = operands
        self._values = operands
        symbols = [Symbol(self, number) for number in range(operands)]
        self.result: int = formula(*symbols, **dict(options)).number

    def call(self, function: str, *args: Symbol | Number) -> Symbol:
        """Record a call, and return its result."""
        result, self._values = self._values, self._values + 1
        if function == "zeros_like":
            self.zeros.add(result)
        else:
            self.calls.append(FormulaCall(function, args, result))
        return Symbol(self, result)

    @property
    def ufunc(self) -> str | None:
        """NumPy's function, if the formula is only that function of its operands in order, else
        None.
        """
        if len(self.calls) > 1 or not is_ufunc(self.calls[0].function):
            return None
        call = self.calls[0]
        is_of_all = call.reads == tuple(range(self.operands)) and len(call.args) == self.operands
        return call.function if is_of_all else None
