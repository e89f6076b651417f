"""Elementary functions of float32 lanes, with their largest error in units in the last place (ulp).

Infinity, NaN, -0.0, overflow and denormals are as in NumPy and PyTorch. `fma` rounds once on every
host that runs machine code.

Source: Cephes' single precision polynomials (Moshier 1989), evaluated with fma
"""

from collections.abc import Sequence

from csrun.compiler.emit.llvm.code import Code, Kind, LaneValue, NoMachineCodeError
from csrun.kernels.special import TANH_COEFFICIENTS

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first has zeros at its end
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_ROUNDER = 12582912.0  # 1.5 * 2**23: what is added to it loses its fraction


class Float32:
    """Functions of values of one kind."""

    def __init__(self, code: Code, kind: Kind) -> None:
        if kind.dtype != "float32":
            raise NoMachineCodeError(f"no elementary functions of {kind.dtype}")
        self._code = code
        self._kind = kind
        self._bits = kind.of("int32")

    def exp(self, x: LaneValue) -> LaneValue:
        """e ** x: 1 ulp; infinity from 88.73 on, denormals below -87.34, 0 below -103.98."""
        code, one = self._code, self._number(1.0)
        biased, r = self._reduced(self._at_most(self._at_least(x, -104.0), 89.0), 2 * 127)
        p = self._fma(self._fma(self._polynomial(r, _EXP), r, one), r, one)
        # 2 ** n as a product of two: n from -150 to 128 is more than an exponent holds. Each half
        # of n + 2 * 127 has the exponent's bias; what is above its bits is shifted out.
        half = code.op("lshr", biased, self._int(1))
        for exponent in (half, code.op("sub", biased, half)):
            power = code.op("shl", exponent, self._int(23))
            p = self._mul(p, code.convert("bitcast", power, "float32"))
        return p

    def expm1(self, x: LaneValue) -> LaneValue:
        """e ** x - 1: 1.5 ulp."""
        code = self._code
        # Half of the power, so that 2 ** 128 is not needed.
        biased, r = self._reduced(self._at_most(self._at_least(x, -20.0), 89.0), 127 - 1)
        power = code.convert("bitcast", code.op("shl", biased, self._int(23)), "float32")
        less = code.op("fsub", power, self._number(0.5))
        half = self._fma(power, self._of_reduced(r), less)
        found = code.op("fadd", half, half)
        # A number of which the square is nothing, -0.0 too, is its own result.
        is_tiny = code.compare("olt", code.call("fabs", x), self._number(2.0**-25))
        return code.select(is_tiny, x, found)

    def log(self, x: LaneValue) -> LaneValue:
        """Natural logarithm: 1 ulp; -infinity of 0, NaN of what is negative."""
        code = self._code
        is_small = code.compare("olt", x, self._number(2.0**-126))
        scaled = code.select(is_small, self._mul(x, self._number(2.0**23)), x)
        bits = code.convert("bitcast", scaled, "int32")
        # The mantissa from sqrt(1/2) to sqrt(2), and its exponent.
        root = self._int(0x3F3504F3)
        above = code.op("sub", bits, root)
        exponent = code.op("ashr", above, self._int(23))
        kept = code.op("add", code.op("and", above, self._int(0x7FFFFF)), root)
        m = code.op("fsub", code.convert("bitcast", kept, "float32"), self._number(1.0))
        less = code.select(is_small, self._int(23), self._int(0))
        e = code.convert("sitofp", code.op("sub", exponent, less), "float32")
        square = self._mul(m, m)
        p = self._mul(self._mul(self._polynomial(m, _LOG), m), square)
        p = self._fma(e, self._number(_LN2_LOW), p)
        p = self._fma(square, self._number(-0.5), p)
        found = self._fma(e, self._number(_LN2_HIGH), self._add(m, p))
        is_normal = code.compare("olt", x, self._number(float("inf")))
        found = code.select(is_normal, found, x)  # infinity and NaN
        is_zero = code.compare("oeq", x, self._number(0.0))
        found = code.select(is_zero, self._number(float("-inf")), found)
        is_negative = code.compare("olt", x, self._number(0.0))
        return code.select(is_negative, self._number(float("nan")), found)

    def log1p(self, x: LaneValue) -> LaneValue:
        """log(1 + x): 2.5 ulp.

        Source: Goldberg 1991, theorem 4
        """
        code, one = self._code, self._number(1.0)
        u = self._add(x, one)
        taken = code.op("fsub", u, one)
        found = self._mul(self.log(u), code.op("fdiv", x, taken))
        is_same = code.compare("oeq", u, one)
        is_infinite = code.compare("oeq", x, self._number(float("inf")))
        return code.select(code.op("or", is_same, is_infinite), x, found)

    def tanh(self, x: LaneValue) -> LaneValue:
        """Hyperbolic tangent: 2.5 ulp."""
        code = self._code
        size = code.call("fabs", x)
        less = self.expm1(self._mul(size, self._number(-2.0)))
        found = code.op("fdiv", less, self._add(less, self._number(2.0)))
        return code.call("copysign", found, x)

    def logistic(self, x: LaneValue) -> LaneValue:
        """1 / (1 + exp(-x)): 2.5 ulp; 0 where the power overflows."""
        code, one = self._code, self._number(1.0)
        return code.op("fdiv", one, self._add(one, self.exp(code.make(self._kind, f"fneg {x}"))))

    def normal_cdf(self, x: LaneValue) -> LaneValue:
        """P(N(0, 1) < x): 1.5e-7, with the polynomial of csrun.kernels.special."""
        p = self._mul(self._polynomial(self._mul(x, x), TANH_COEFFICIENTS), x)
        return self.logistic(self._add(p, p))  # (1 + tanh(p)) / 2

    # Pieces.

    def _reduced(self, x: LaneValue, bias: int) -> tuple[LaneValue, LaneValue]:
        """n + bias and r with x = n ln 2 + r, |r| < ln 2 / 2; the integer is in the low 22 bits."""
        code, rounder = self._code, self._number(_ROUNDER + bias)
        shifted = self._fma(x, self._number(_LOG2_E), rounder)
        bits = code.convert("bitcast", shifted, "int32")
        whole = code.op("fsub", shifted, rounder)
        r = self._fma(whole, self._number(-_LN2_HIGH), x)
        return bits, self._fma(whole, self._number(-_LN2_LOW), r)

    def _of_reduced(self, r: LaneValue) -> LaneValue:
        """e ** r - 1."""
        return self._fma(self._mul(r, r), self._polynomial(r, _EXP), r)

    def _polynomial(self, x: LaneValue, coefficients: Sequence[float]) -> LaneValue:
        """Horner's rule; coefficients by falling power."""
        found = self._number(coefficients[0])
        for coefficient in coefficients[1:]:
            found = self._fma(found, x, self._number(coefficient))
        return found

    def _at_least(self, x: LaneValue, bound: float) -> LaneValue:
        """NaN stays."""
        is_less = self._code.compare("olt", x, self._number(bound))
        return self._code.select(is_less, self._number(bound), x)

    def _at_most(self, x: LaneValue, bound: float) -> LaneValue:
        is_more = self._code.compare("ogt", x, self._number(bound))
        return self._code.select(is_more, self._number(bound), x)

    def _number(self, number: float) -> LaneValue:
        return self._code.constant(number, self._kind)

    def _int(self, number: int) -> LaneValue:
        return self._code.constant(number, self._bits)

    def _add(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return self._code.op("fadd", x, y)

    def _mul(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return self._code.op("fmul", x, y)

    def _fma(self, x: LaneValue, y: LaneValue, z: LaneValue) -> LaneValue:
        return self._code.call("fma", x, y, z)
