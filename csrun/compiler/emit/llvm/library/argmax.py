"""Machine code of argmax along the last axis: of equal numbers the first; a NaN is the largest.

Numbers are compared as integers: those of negative ones are in reverse order, -0.0 becomes 0.0.
"""

from math import prod

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    ZERO,
    LibraryFunction,
    each_vector,
)
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.kernels.outputs import Argmax

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_INTEGERS = Kind("int32", LANES)


def argmax_code(kernel: Argmax, name: str) -> KernelCode | None:
    """Machine code over rows; None of another type, or where a row is not contiguous."""
    size, rows = kernel.x.shape[-1], prod(kernel.out.shape)
    x, out = kernel.x.reshaped((rows, size)), kernel.out.reshaped((rows,))
    is_last = kernel.dim % len(kernel.x.shape) == len(kernel.x.shape) - 1
    if x is None or out is None or not is_last or x.strides[1] != 1 or x.dtype != "float32":
        return None
    function = LibraryFunction((x, out))
    with function.code.loop(FIRST, LAST) as row:
        place = _largest_place(function.code, function.row(0, row), size)
        function.code.store(place, function.row(1, row))
    return function.finished(name, rows)


def _largest_place(code: Code, pointer: str, size: int) -> LaneValue:
    """Each lane has the first of its largest numbers; of these the first one is taken."""
    most = code.slot(code.constant(_LEAST, _INTEGERS))
    places = code.slot(code.constant(0, _INTEGERS))

    def compare(at: LaneValue, mask: LaneValue | None) -> None:
        place = code.offset(pointer, "float32", at)
        key = _key(code, code.load(place, Kind("float32", LANES), mask))
        if mask is not None:
            key = code.select(mask, key, code.constant(_LEAST, _INTEGERS))
        before = code.get(most, _INTEGERS)
        is_more = code.compare("sgt", key, before)
        first = code.splat(code.convert("trunc", at, "int32"), LANES)
        own = code.op("add", first, code.lane_numbers("int32"))
        code.set(most, code.select(is_more, key, before))
        code.set(places, code.select(is_more, own, code.get(places, _INTEGERS)))

    each_vector(code, size, compare, ZERO)
    keys = code.get(most, _INTEGERS)
    largest = code.splat(_reduced(code, "smax", keys), LANES)
    own = code.get(places, _INTEGERS)
    first = code.select(code.compare("eq", keys, largest), own, code.constant(_MOST, _INTEGERS))
    return code.convert("sext", _reduced(code, "smin", first), "int64")


def _key(code: Code, x: LaneValue) -> LaneValue:
    """An integer that is larger where a number is."""
    bits = code.convert("bitcast", code.op("fadd", x, code.constant(0.0, x.kind)), "int32")
    sign = code.op("ashr", bits, code.constant(31, _INTEGERS))
    key = code.op("xor", bits, code.op("and", sign, code.constant(_MOST, _INTEGERS)))
    return code.select(code.compare("uno", x, x), code.constant(_MOST, _INTEGERS), key)


def _reduced(code: Code, how: str, x: LaneValue) -> LaneValue:
    return code.call_typed(f"llvm.vector.reduce.{how}.{x.kind.suffix}", Kind("int32"), [x])
