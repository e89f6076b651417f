"""Elementary functions of float32 lanes, with their largest error in units in the last place (ulp).

Infinity, NaN, -0.0, overflow and denormals are as in NumPy and PyTorch. `fma` rounds once on every
host that runs machine code.

Source: Cephes' single precision polynomials (Moshier 1989), evaluated with fma
"""

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.exponentiation import Exponentiation
from csrun.compiler.emit.llvm.lane_functions.lane_math import LaneMath
from csrun.compiler.emit.llvm.lane_functions.sine import Sine
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, NoMachineCodeError
from csrun.executable.host_functions import PORTABLE, TIMES_POWER
from csrun.kernels.special import TANH_COEFFICIENTS

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first has trailing zeros
#: (e ** r - 1 - r) / r ** 2 for |r| < ln 2 / 2, minimax: e ** r is within 0.06 * 2 ** -24.
_EXP = (1.3820634e-3, 8.3686737e-3, 4.1668266e-2, 1.6666521e-1, 0.49999994)
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
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds a number to an integer


class Float32(LaneMath):
    """Functions of values of one type."""

    def __init__(self, code: Code, kind: Kind) -> None:
        if kind.dtype != "float32":
            raise NoMachineCodeError(f"no elementary functions of {kind.dtype}")
        super().__init__(code, kind)

    def exp(self, x: LaneValue) -> LaneValue:
        """e ** x: 1 ulp; infinity from 88.73 on, denormals below -87.34, 0 below -103.98."""
        code, one = self.code, self.number(1.0)
        biased, n, r = self._reduced(self.at_most(self.at_least(x, -104.0), 89.0), 2 * 127)
        p = self.fma(self.fma(self.polynomial(r, _EXP), r, one), r, one)
        if self.kind.lanes == LANES:
            return code.call_internal(TIMES_POWER, PORTABLE[TIMES_POWER], self.kind, [p, biased, n])
        half = code.op("lshr", biased, self.integer(1))
        for exponent in (half, code.op("sub", biased, half)):
            power = code.op("shl", exponent, self.integer(23))
            p = self.mul(p, code.convert("bitcast", power, "float32"))
        return p

    def expm1(self, x: LaneValue) -> LaneValue:
        """e ** x - 1: 1.5 ulp."""
        code = self.code
        # Half of the power, so that 2 ** 128 is not needed.
        biased, _, r = self._reduced(self.at_most(self.at_least(x, -20.0), 89.0), 127 - 1)
        power = code.convert("bitcast", code.op("shl", biased, self.integer(23)), "float32")
        less = code.op("fsub", power, self.number(0.5))
        half = self.fma(power, self._of_reduced(r), less)
        found = code.op("fadd", half, half)
        # A number whose square underflows, also -0.0, is its own result.
        is_tiny = code.compare("olt", code.call("fabs", x), self.number(2.0**-25))
        return code.select(is_tiny, x, found)

    def log(self, x: LaneValue) -> LaneValue:
        """Natural logarithm: 1 ulp; -infinity for 0, NaN for negative numbers."""
        code = self.code
        is_small = code.compare("olt", x, self.number(2.0**-126))
        scaled = code.select(is_small, self.mul(x, self.number(2.0**23)), x)
        bits = code.convert("bitcast", scaled, "int32")
        # the mantissa from sqrt(1/2) to sqrt(2), and its exponent
        root = self.integer(0x3F3504F3)
        above = code.op("sub", bits, root)
        exponent = code.op("ashr", above, self.integer(23))
        kept = code.op("add", code.op("and", above, self.integer(0x7FFFFF)), root)
        m = code.op("fsub", code.convert("bitcast", kept, "float32"), self.number(1.0))
        less = code.select(is_small, self.integer(23), self.integer(0))
        e = code.convert("sitofp", code.op("sub", exponent, less), "float32")
        square = self.mul(m, m)
        p = self.mul(self.mul(self.polynomial(m, _LOG), m), square)
        p = self.fma(e, self.number(_LN2_LOW), p)
        p = self.fma(square, self.number(-0.5), p)
        found = self.fma(e, self.number(_LN2_HIGH), self.add(m, p))
        is_normal = code.compare("olt", x, self.number(float("inf")))
        found = code.select(is_normal, found, x)  # infinity and NaN
        is_zero = code.compare("oeq", x, self.number(0.0))
        found = code.select(is_zero, self.number(float("-inf")), found)
        is_negative = code.compare("olt", x, self.number(0.0))
        return code.select(is_negative, self.number(float("nan")), found)

    def log1p(self, x: LaneValue) -> LaneValue:
        """log(1 + x): 2.5 ulp.

        Source: Goldberg 1991, theorem 4
        """
        code, one = self.code, self.number(1.0)
        u = self.add(x, one)
        taken = code.op("fsub", u, one)
        found = self.mul(self.log(u), code.op("fdiv", x, taken))
        is_same = code.compare("oeq", u, one)
        is_infinite = code.compare("oeq", x, self.number(float("inf")))
        return code.select(code.op("or", is_same, is_infinite), x, found)

    def tanh(self, x: LaneValue) -> LaneValue:
        """Hyperbolic tangent: 2.5 ulp."""
        code = self.code
        size = code.call("fabs", x)
        less = self.expm1(self.mul(size, self.number(-2.0)))
        found = code.op("fdiv", less, self.add(less, self.number(2.0)))
        return code.call("copysign", found, x)

    def logistic(self, x: LaneValue) -> LaneValue:
        """1 / (1 + exp(-x)): 2.5 ulp; 0 if the power overflows."""
        code, one = self.code, self.number(1.0)
        return code.op("fdiv", one, self.add(one, self.exp(code.make(self.kind, f"fneg {x}"))))

    def normal_cdf(self, x: LaneValue) -> LaneValue:
        """P(N(0, 1) < x): 1.5e-7, with the polynomial of csrun.kernels.special."""
        p = self.mul(self.polynomial(self.mul(x, x), TANH_COEFFICIENTS), x)
        return self.logistic(self.add(p, p))  # (1 + tanh(p)) / 2

    def sin(self, x: LaneValue) -> LaneValue:
        """Sine: 0.51 ulp; NaN for infinity."""
        return Sine(self.code, x).sin()

    def cos(self, x: LaneValue) -> LaneValue:
        """Cosine: 0.51 ulp; NaN for infinity."""
        return Sine(self.code, x).cos()

    def power(self, x: LaneValue, y: LaneValue) -> LaneValue:
        """x ** y: 0.51 ulp; NaN for negative x, unless y is an integer."""
        return Exponentiation(self.code, x, y).value()

    # Helpers.

    def _reduced(self, x: LaneValue, bias: int) -> tuple[LaneValue, LaneValue, LaneValue]:
        """Return n + bias, n and r with x = n ln 2 + r, |r| < ln 2 / 2; the first is an integer, in
        the low 22 bits.
        """
        code, rounder = self.code, self.number(_ROUNDER + bias)
        shifted = self.fma(x, self.number(_LOG2_E), rounder)
        bits = code.convert("bitcast", shifted, "int32")
        whole = code.op("fsub", shifted, rounder)
        r = self.fma(whole, self.number(-_LN2_HIGH), x)
        return bits, whole, self.fma(whole, self.number(-_LN2_LOW), r)

    def _of_reduced(self, r: LaneValue) -> LaneValue:
        """Return e ** r - 1."""
        return self.fma(self.mul(r, r), self.polynomial(r, _EXP), r)
