"""Rounding of float32 to the numbers of a 16-bit format, as instructions on the bits.

The same steps as `csrun.base.half_formats`, so that both give the same bits.
"""

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.llvm.code import Code, LaneValue, NoMachineCodeError

_SIGN, _INFINITY = -(1 << 31), 0x7F800000


def round_half(code: Code, half: HalfFormat, x: LaneValue) -> LaneValue:
    """The nearest number of a format, ties to even.

    Raises: NoMachineCodeError for what is not float32
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
    return code.select(code.compare("uno", x, x), x, rounded)


def _in_range(code: Code, half: HalfFormat, x: LaneValue, rounded: LaneValue) -> LaneValue:
    """Infinity where a rounded number is too large; subnormals where one is small."""
    kind, integers = x.kind, x.kind.of("int32")
    sign = code.op("and", code.convert("bitcast", x, "int32"), code.constant(_SIGN, integers))
    magnitude = code.call("fabs", rounded)
    infinity = code.op("or", sign, code.constant(_INFINITY, integers))
    infinity = code.convert("bitcast", infinity, "float32")
    is_large = code.compare("ogt", magnitude, code.constant(half.largest, kind))
    found = code.select(is_large, infinity, rounded)
    # The sum's last place is the smallest subnormal: the addition rounds there.
    magnitude, aligner = code.call("fabs", x), code.constant(half.aligner, kind)
    aligned = code.op("fsub", code.op("fadd", magnitude, aligner), aligner)
    small = code.op("or", sign, code.convert("bitcast", aligned, "int32"))
    is_small = code.compare("olt", magnitude, code.constant(half.smallest_normal, kind))
    return code.select(is_small, code.convert("bitcast", small, "float32"), found)
