"""Machine code of rotary position embedding."""

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    LibraryFunction,
    each_vector,
)
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.kernels.rotary import Rotary


def rotary_code(kernel: Rotary, name: str) -> KernelCode | None:
    """Return machine code over the axes up to that of positions; None if the last axis is not
    contiguous.
    """
    if any(array.strides[-1] != 1 for array in (kernel.x, kernel.out)):
        return None
    writer = _RotaryWriter(kernel)
    writer.write()
    return writer.function.finished(name, prod(kernel.x.shape[: kernel.dim + 1]))


class _RotaryWriter:
    """Writes the function: rotations of each row, with the factors of its position."""

    def __init__(self, kernel: Rotary) -> None:
        self._kernel = kernel
        self.function = LibraryFunction((kernel.x, kernel.out), constants=kernel.constants)
        self._code = self.function.code
        self._kind = Kind(kernel.x.dtype, LANES)

    def write(self) -> None:
        """Write the loops over rows: positions and the axes before, then the axes after them."""
        code, kernel = self._code, self._kernel
        shape = kernel.x.shape
        with code.loop(FIRST, LAST) as row:
            position = code.op("urem", row, index(shape[kernel.dim]))
            places = self._unfolded(row, shape[: kernel.dim + 1])
            with ExitStack() as nest:
                for size in shape[kernel.dim + 1 : -1]:
                    places.append(nest.enter_context(code.loop(index(0), index(size))))
                source, target = (
                    self._address(number, array.strides, places)
                    for number, array in enumerate((kernel.x, kernel.out))
                )
                self._write_row(source, target, position)

    def _unfolded(self, row: LaneValue, shape: Sequence[int]) -> list[LaneValue]:
        """Return the index of a row along each axis."""
        places: list[LaneValue] = []
        for size in reversed(shape):
            places.insert(0, self._code.op("urem", row, index(size)))
            row = self._code.op("udiv", row, index(size))
        return places

    def _address(self, number: int, strides: Sequence[int], places: Sequence[LaneValue]) -> str:
        pointer = self.function.pointers[number]
        for stride, place in zip(strides, places, strict=False):
            elements = self._code.op("mul", place, index(stride))
            pointer = self._code.offset(pointer, self._kind.dtype, elements)
        return pointer

    def _write_row(self, source: str, target: str, position: LaneValue) -> None:
        code, kernel, dtype = self._code, self._kernel, self._kind.dtype
        width = kernel.size if kernel.is_interleaved else kernel.size // 2
        start = code.op("mul", position, index(width))
        factors = [code.offset(pointer, dtype, start) for pointer in self.function.pointers[2:]]

        def rotate(at: LaneValue, mask: LaneValue | None) -> None:
            own = [self._load(factor, at, mask) for factor in factors]
            if kernel.is_interleaved:
                self._store(self._pairs(self._load(source, at, mask), own[0]), target, at, mask)
                return
            second = code.op("add", at, index(width))
            x, y = (self._load(source, place, mask) for place in (at, second))
            self._store(self._less(x, y, own), target, at, mask)
            self._store(self._more(y, x, own), target, second, mask)

        def keep(at: LaneValue, mask: LaneValue | None) -> None:
            place = code.op("add", at, index(kernel.size))
            self._store(self._load(source, place, mask), target, place, mask)

        each_vector(code, width, rotate)
        if kernel.size < kernel.x.shape[-1] and kernel.x != kernel.out:
            each_vector(code, kernel.x.shape[-1] - kernel.size, keep)

    def _less(self, x: LaneValue, y: LaneValue, factors: Sequence[LaneValue]) -> LaneValue:
        """Return x cos - y sin."""
        products = (self._code.op("fmul", v, f) for v, f in zip((x, y), factors, strict=True))
        return self._code.op("fsub", *products)

    def _more(self, x: LaneValue, y: LaneValue, factors: Sequence[LaneValue]) -> LaneValue:
        """Return x cos + y sin."""
        products = (self._code.op("fmul", v, f) for v, f in zip((x, y), factors, strict=True))
        return self._code.op("fadd", *products)

    def _pairs(self, x: LaneValue, factors: LaneValue) -> LaneValue:
        """Return products of complex numbers in pairs of lanes."""
        swapped = self._shuffled(x, [n ^ 1 for n in range(LANES)])
        own = [self._shuffled(factors, [n & ~1 | part for n in range(LANES)]) for part in (0, 1)]
        odd = ", ".join(f"i1 {str(bool(n % 2)).lower()}" for n in range(LANES))
        is_odd = LaneValue(f"<{odd}>", Kind("bool", LANES))
        return self._code.select(is_odd, self._more(x, swapped, own), self._less(x, swapped, own))

    def _shuffled(self, x: LaneValue, lanes: Sequence[int]) -> LaneValue:
        numbers = ", ".join(f"i32 {n}" for n in lanes)
        order = f"<{LANES} x i32> <{numbers}>"
        return self._code.make(x.kind, f"shufflevector {x}, {x.kind.ir} poison, {order}")

    def _load(self, start: str, at: LaneValue, mask: LaneValue | None) -> LaneValue:
        return self._code.load(self._code.offset(start, self._kind.dtype, at), self._kind, mask)

    def _store(self, value: LaneValue, start: str, at: LaneValue, mask: LaneValue | None) -> None:
        self._code.store(value, self._code.offset(start, self._kind.dtype, at), mask)
