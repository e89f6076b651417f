"""Conversion between float32 and numbers or words of a 16-bit format, by bit operations.

The steps are those of `csrun.base.half_formats`, so both give the same bits.
"""

from collections.abc import Callable, Mapping

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LaneValue, NoMachineCodeError

_SIGN, _INFINITY, _QUIET = -(1 << 31), 0x7F800000, 1 << 22


def round_half(code: Code, half: HalfFormat, x: LaneValue) -> LaneValue:
    """Return the nearest number of a format, ties to even.

    Raises: NoMachineCodeError for anything but float32
    """
    if x.kind.dtype != "float32":
        raise NoMachineCodeError(f"rounding of {x.kind.dtype} to 16 bits")
    integers = x.kind.of("int32")
    bits = code.convert("bitcast", x, "int32")
    dropped = half.dropped_bits
    last = code.op("lshr", bits, code.constant(dropped, integers))
    last = code.op("and", last, code.constant(1, integers))
    up = code.op("add", last, code.constant((1 << (dropped - 1)) - 1, integers))
    found = code.op("add", bits, up)
    found = code.op("and", found, code.constant(-(1 << dropped), integers))
    rounded = code.convert("bitcast", found, "float32")
    if not half.has_range_of_float32:
        rounded = _in_range(code, half, x, rounded)
    # Set the quiet bit: a NaN whose payload is only in the dropped bits would become infinity.
    quiet = code.op("or", bits, code.constant(_QUIET, integers))
    quiet = code.op("and", quiet, code.constant(-(1 << dropped), integers))
    quiet = code.convert("bitcast", quiet, "float32")
    return code.select(code.compare("uno", x, x), quiet, rounded)


def _in_range(code: Code, half: HalfFormat, x: LaneValue, rounded: LaneValue) -> LaneValue:
    """Return infinity if a rounded number is too large; round to subnormals if it is small."""
    kind, integers = x.kind, x.kind.of("int32")
    sign = code.op("and", code.convert("bitcast", x, "int32"), code.constant(_SIGN, integers))
    magnitude = code.call("fabs", rounded)
    infinity = code.op("or", sign, code.constant(_INFINITY, integers))
    infinity = code.convert("bitcast", infinity, "float32")
    is_large = code.compare("ogt", magnitude, code.constant(half.largest, kind))
    found = code.select(is_large, infinity, rounded)
    # The last place of the sum is the smallest subnormal, so the addition rounds there.
    magnitude, aligner = code.call("fabs", x), code.constant(half.aligner, kind)
    aligned = code.op("fsub", code.op("fadd", magnitude, aligner), aligner)
    small = code.op("or", sign, code.convert("bitcast", aligned, "int32"))
    is_small = code.compare("olt", magnitude, code.constant(half.smallest_normal, kind))
    return code.select(is_small, code.convert("bitcast", small, "float32"), found)


def narrow_half(code: Code, half: HalfFormat, x: LaneValue) -> LaneValue:
    """Return the words of a format nearest to float32."""
    integers = x.kind.of("int32")
    magnitude = _magnitude(code, x)
    last = code.op("lshr", magnitude, code.constant(half.dropped_bits, integers))
    last = code.op("and", last, code.constant(1, integers))
    up = code.op("add", last, code.constant((1 << (half.dropped_bits - 1)) - 1, integers))
    return _words(code, half, x, code.op("add", magnitude, up))


def half_words(code: Code, half: HalfFormat, x: LaneValue) -> LaneValue:
    """Words of numbers that the format has."""
    if not half.has_range_of_float32:
        return _words(code, half, x, _magnitude(code, x))
    integers = x.kind.of("int32")
    bits = code.convert("bitcast", x, "int32")
    upper = code.op("lshr", bits, code.constant(half.dropped_bits, integers))
    return code.convert("trunc", upper, "uint16")


def _magnitude(code: Code, x: LaneValue) -> LaneValue:
    bits = code.convert("bitcast", x, "int32")
    return code.op("and", bits, code.constant(~_SIGN, x.kind.of("int32")))


def _words(code: Code, half: HalfFormat, x: LaneValue, rounded: LaneValue) -> LaneValue:
    """Return the 16-bit words of x.

    rounded: bits of |x| after rounding; the bits that the format drops may have any value.
    """
    integers, kind = x.kind.of("int32"), x.kind
    infinity = code.constant(half.infinity, integers)
    word = code.op("sub", rounded, code.constant(half.rebias, integers))
    word = code.op("lshr", word, code.constant(half.dropped_bits, integers))
    if not half.has_range_of_float32:
        word = code.select(code.compare("ult", word, infinity), word, infinity)
        # The sum's unit in the last place is the smallest subnormal: its low bits count multiples
        # of that.
        aligner, size = code.constant(half.aligner, kind), code.call("fabs", x)
        aligned = code.convert("bitcast", code.op("fadd", size, aligner), "int32")
        small = code.op("sub", aligned, code.convert("bitcast", aligner, "int32"))
        is_small = code.compare("olt", size, code.constant(half.smallest_normal, kind))
        word = code.select(is_small, small, word)
    # Set the quiet bit: a NaN whose payload is only in the dropped bits would become infinity.
    magnitude = _magnitude(code, x)
    payload = code.op("lshr", magnitude, code.constant(half.dropped_bits, integers))
    payload = code.op("and", payload, code.constant((1 << half.mantissa_bits) - 1, integers))
    quiet = code.constant(half.infinity | 1 << (half.mantissa_bits - 1), integers)
    payload = code.op("or", payload, quiet)
    word = code.select(code.compare("uno", x, x), payload, word)
    sign = code.op("and", code.convert("bitcast", x, "int32"), code.constant(_SIGN, integers))
    word = code.op("or", word, code.op("lshr", sign, code.constant(16, integers)))
    return code.convert("trunc", word, "uint16")


def widen_half(code: Code, half: HalfFormat, words: LaneValue) -> LaneValue:
    """Return the float32 of a format's words.

    Raises: NoMachineCodeError for anything but words
    """
    if words.kind.dtype != "uint16":
        raise NoMachineCodeError(f"widening of {words.kind.dtype}")
    word = code.convert("zext", words, "int32")
    integers, kind = word.kind, word.kind.of("float32")
    if half.has_range_of_float32:
        shifted = code.op("shl", word, code.constant(16, integers))
        return code.convert("bitcast", shifted, "float32")
    magnitude = code.op("and", word, code.constant(0x7FFF, integers))
    sign = code.op("xor", word, magnitude)
    sign = code.op("shl", sign, code.constant(16, integers))
    shifted = code.op("shl", magnitude, code.constant(half.dropped_bits, integers))
    found = code.op("add", shifted, code.constant(half.rebias, integers))
    numbers = code.convert("sitofp", magnitude, "float32")
    small = code.op("fmul", numbers, code.constant(half.smallest, kind))
    is_small = code.compare("ult", magnitude, code.constant(1 << half.mantissa_bits, integers))
    found = code.select(is_small, code.convert("bitcast", small, "int32"), found)
    special = code.op("or", shifted, code.constant(_INFINITY, integers))
    is_special = code.compare("uge", magnitude, code.constant(half.infinity, integers))
    found = code.op("or", code.select(is_special, special, found), sign)
    return code.convert("bitcast", found, "float32")


#: Instructions of the functions that formulas call.
CONVERSIONS: Mapping[str, Callable[[Code, HalfFormat, LaneValue], LaneValue]] = {
    "round_half": round_half,
    "narrow_half": narrow_half,
    "half_words": half_words,
    "widen_half": widen_half,
}
