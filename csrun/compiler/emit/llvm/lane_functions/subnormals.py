"""Products of float32 lanes with a number, of which many are subnormal.

The state of an optimizer decays by a factor each step: once gradients are zero, it is subnormal for
hundreds of steps. A CPU that meets such a number in a multiplication takes a hundred cycles longer.
So they are counted in units of 2**-149, which are normal numbers. The bits are those of `fmul`.
"""

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LaneValue

_MAGNITUDE, _SIGN = 0x7FFFFFFF, -0x80000000
_LEAST_NORMAL = 1 << 23  # bits of 2**-126; a smaller number's are its units
_FEW = (127 - 96) << 23  # bits of 2**-96: products of smaller numbers may be subnormal
_TO_UNITS = 149 << 23  # 2**149, added to an exponent
_ONE_UNIT = 2.0**23  # a sum of this binade has no fraction


def scale_lanes(code: Code, x: LaneValue, number: LaneValue) -> LaneValue:
    """The product of lanes with a number that is the same in all of them."""
    kind, integers = x.kind, x.kind.of("int32")
    bits = code.convert("bitcast", x, "int32")
    magnitude = code.op("and", bits, code.constant(_MAGNITUDE, integers))
    # One less, without sign: a zero, which takes no longer than others, is the largest.
    less = code.op("sub", magnitude, code.constant(1, integers))
    is_tiny = code.compare("ult", less, code.constant(_FEW - 1, integers))
    one_unit = code.constant(_ONE_UNIT, kind)
    found = code.slot(_normal_product(code, is_tiny, one_unit, x, number))
    with code.when(code.any_lane(is_tiny)):
        # Not of others: an exponent that overflows may be that of a subnormal number.
        tiny = code.call("umin", magnitude, code.constant(_FEW, integers))
        scaled = code.op("add", tiny, code.constant(_TO_UNITS, integers))
        units = code.select(
            code.compare("ult", magnitude, code.constant(_LEAST_NORMAL, integers)),
            code.convert("sitofp", magnitude, "float32"),
            code.convert("bitcast", scaled, "float32"),
        )
        total = code.call("fma", units, code.call("fabs", number), one_unit)
        is_below = code.compare("olt", total, code.constant(2 * _ONE_UNIT, kind))
        is_subnormal = code.op("and", is_tiny, is_below)
        count = code.op("sub", *(code.convert("bitcast", v, "int32") for v in (total, one_unit)))
        signs = code.op("xor", bits, code.convert("bitcast", number, "int32"))
        signed = code.op("or", count, code.op("and", signs, code.constant(_SIGN, integers)))
        others = _normal_product(code, is_subnormal, total, x, number)
        small = code.convert("bitcast", signed, "float32")
        code.set(found, code.select(is_subnormal, small, others))
    return code.get(found, kind)


def _normal_product(
    code: Code, mask: LaneValue, instead: LaneValue, x: LaneValue, number: LaneValue
) -> LaneValue:
    """The product; where the mask is true that of another factor, which takes no longer."""
    normal = code.select(mask, instead, x)
    # Without the fence LLVM would multiply x and select afterwards.
    return code.op("fmul", code.call("arithmetic.fence", normal), number)
