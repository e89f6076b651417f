"""Logarithm of the gamma function and its derivatives.

They are computed in float64: their terms cancel in part.
"""

from collections.abc import Callable, Sequence
from math import factorial, inf, log, nan, pi, prod

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, LogOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.comparison import EqOp, GtOp, LtOp, WhereOp
from csrun.cirh.ops.powers import AbsOp, ReciprocalOp
from csrun.cirh.ops.rounding import FloorOp
from csrun.cirh.ops.trigonometry import CosOp, SinOp
from csrun.pytorch.operators.base import Emission, Emitter, Unsupported

Unary = Callable[[Emission, SSAValue], SSAValue]
WIDE = "float64"
SHIFT = 8  # from which on the asymptotic series is exact to rounding
#: Bernoulli's numbers B2, B4, …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _number(e: Emission, value: float) -> SSAValue:
    return e.full(value, WIDE)


def _plus(e: Emission, x: SSAValue, number: float) -> SSAValue:
    return e.emit(AddOp, x, _number(e, number)) if number else x


def _times(e: Emission, x: SSAValue, number: float) -> SSAValue:
    return e.emit(MulOp, x, _number(e, number))


def polynomial(e: Emission, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
    """Emit a polynomial by Horner's rule. coefficients: the highest first."""
    first, second, *others = coefficients
    found = _plus(e, _times(e, x, first), second)
    for number in others:
        found = _plus(e, e.emit(MulOp, found, x), number)
    return found


def in_float64(emitter: Unary) -> Unary:
    """Return the emitter of a function of one value that is computed in float64."""

    def emit(e: Emission, x: SSAValue) -> SSAValue:
        return e.cast(emitter(e, e.cast(x, WIDE)), e.dtype)

    return emit


def _pole(e: Emission, x: SSAValue) -> SSAValue:
    """True at 0, -1, -2, …"""
    is_whole = e.emit(EqOp, x, e.emit(FloorOp, x))
    none, one = e.full(0, "bool"), e.emit(GtOp, x, _number(e, 0))
    return e.emit(WhereOp, one, none, is_whole)


def _fraction_angle(e: Emission, x: SSAValue) -> SSAValue:
    """pi times the fractional part of x, of which the sine is exact near integers."""
    return _times(e, e.emit(SubOp, x, e.emit(FloorOp, x)), pi)


def _mirrored(e: Emission, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return whether x is below 1/2, and x, or 1 - x there."""
    is_low = e.emit(LtOp, x, _number(e, 0.5))
    other = e.emit(SubOp, _number(e, 1), x)
    return is_low, e.emit(WhereOp, is_low, other, x)


def log_gamma(e: Emission, x: SSAValue) -> SSAValue:
    """log |gamma(x)| by Stirling's series at x + 8; below 1/2 by reflection.

    Source: Abramowitz and Stegun 1964, 6.1.15, 6.1.17 and 6.1.40
    """
    is_low, y = _mirrored(e, x)
    z = _plus(e, y, SHIFT)
    rest = y
    for k in range(1, SHIFT):
        rest = e.emit(MulOp, rest, _plus(e, y, k))
    is_large = e.emit(GtOp, y, _number(e, 1e6))  # whose product would be infinite
    z = e.emit(WhereOp, is_large, y, z)
    rest = e.emit(WhereOp, is_large, _number(e, 1), rest)
    inverse = e.emit(ReciprocalOp, z)
    terms = [b / (2 * j * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1)]
    series = polynomial(e, e.emit(MulOp, inverse, inverse), terms[::-1])
    found = e.emit(MulOp, _plus(e, z, -0.5), _plus(e, e.emit(LogOp, z), -1))
    found = _plus(e, e.emit(AddOp, found, e.emit(MulOp, series, inverse)), log(2 * pi) / 2 - 0.5)
    found = e.emit(SubOp, found, e.emit(LogOp, rest))
    found = e.emit(WhereOp, e.emit(EqOp, y, _number(e, inf)), _number(e, inf), found)
    sine = e.emit(AbsOp, e.emit(SinOp, _fraction_angle(e, x)))
    other = e.emit(SubOp, _plus(e, e.emit(NegOp, e.emit(LogOp, sine)), log(pi)), found)
    found = e.emit(WhereOp, is_low, other, found)
    return e.emit(WhereOp, _pole(e, x), _number(e, inf), found)


def digamma(e: Emission, x: SSAValue) -> SSAValue:
    """The slope of log_gamma. Source: Abramowitz and Stegun 1964, 6.3.5, 6.3.7 and 6.3.18"""
    is_low, y = _mirrored(e, x)
    z = _plus(e, y, SHIFT)
    inverse = e.emit(ReciprocalOp, z)
    square = e.emit(MulOp, inverse, inverse)
    terms = [b / (2 * j) for j, b in enumerate(_BERNOULLI, 1)]
    series = e.emit(MulOp, polynomial(e, square, terms[::-1]), square)
    found = e.emit(SubOp, e.emit(LogOp, z), _times(e, inverse, 0.5))
    found = e.emit(SubOp, found, series)
    for k in range(SHIFT):
        found = e.emit(SubOp, found, e.emit(ReciprocalOp, _plus(e, y, k)))
    angle = _fraction_angle(e, x)
    slope = e.emit(DivOp, _times(e, e.emit(CosOp, angle), pi), e.emit(SinOp, angle))
    found = e.emit(WhereOp, is_low, e.emit(SubOp, found, slope), found)
    found = e.emit(WhereOp, _pole(e, x), _number(e, nan), found)
    is_zero = e.emit(EqOp, x, _number(e, 0))
    signed = e.emit(NegOp, e.emit(DivOp, _number(e, 1), x))
    return e.emit(WhereOp, is_zero, signed, found)


def polygamma(e: Emission, n: int, x: SSAValue) -> SSAValue:
    """The first derivative of digamma, by Hurwitz's zeta function and reflection.

    Source: Abramowitz and Stegun 1964, 6.4.10 and 23.2.7
    """
    if n == 0:
        return in_float64(digamma)(e, x)
    if n > 1:
        raise Unsupported(f"operator not supported for order {n}: differentiate less often")
    x, s = e.cast(x, WIDE), n + 1
    is_low, y = _mirrored(e, x)
    z = _plus(e, y, SHIFT)
    inverse = e.emit(ReciprocalOp, z)
    square = e.emit(MulOp, inverse, inverse)
    terms = [
        b / factorial(2 * j) * prod(range(s, s + 2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1)
    ]
    series = e.emit(MulOp, polynomial(e, square, terms[::-1]), inverse)
    found = _plus(e, e.emit(AddOp, series, _times(e, z, 1 / (s - 1))), 0.5)
    found = e.emit(MulOp, found, _power(e, inverse, s))
    for k in range(SHIFT):
        found = e.emit(AddOp, found, _power(e, e.emit(ReciprocalOp, _plus(e, y, k)), s))
    found = _times(e, found, (-1) ** (n + 1) * factorial(n))
    cosecant = e.emit(DivOp, _number(e, pi), e.emit(SinOp, _fraction_angle(e, x)))
    mirrored = e.emit(SubOp, e.emit(MulOp, cosecant, cosecant), found)
    return e.cast(e.emit(WhereOp, is_low, mirrored, found), e.dtype)


def _power(e: Emission, x: SSAValue, n: int) -> SSAValue:
    found = x
    for _ in range(n - 1):
        found = e.emit(MulOp, found, x)
    return found


EMITTERS: dict[str, Emitter] = {
    "aten.lgamma.default": in_float64(log_gamma),
    "aten.digamma.default": in_float64(digamma),
    "aten.polygamma.default": polygamma,
}
