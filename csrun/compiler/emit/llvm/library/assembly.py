"""Machine code of concatenations and of the gradients of slices: copies of parts to their places.

A function `name.begin` clears the whole where parts do not fill it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import gcd, prod

from csrun.compiler.emit.llvm.code import LANES, Code, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    ZERO,
    LibraryFunction,
    each_vector,
    vectors_of,
)
from csrun.compiler.emit.llvm.matrices import times
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.concatenation import Assembly, Piece

ROWS = 64  # of a part that threads share, at least, if it has several axes
LEAST_VECTOR = 8  # consecutive numbers from which vectors are worth it


def assembly_code(kernel: Assembly, name: str) -> KernelCode | None:
    """Machine code over rows of all parts, one part after the other.

    None where a part is another type, or in the memory that is written.
    """
    if not kernel.is_whole and not kernel.out.is_contiguous:
        return None
    if any(p.x.dtype != p.place.dtype or p.x.name == p.place.name for p in kernel.pieces):
        return None
    arrays = [array for piece in kernel.pieces for array in (piece.x, piece.place)]
    arrays += [] if kernel.is_whole else [kernel.out]
    function, rows = LibraryFunction(arrays), 0
    for number, piece in enumerate(kernel.pieces):
        copy = _PieceCopy(function.code, piece, function.pointers[2 * number : 2 * number + 2])
        copy.write(rows)
        rows += copy.rows
    code = function.finished(name, rows)
    if kernel.is_whole:
        return code
    begin = _clearing(arrays).finished(f"{name}.begin", 0)
    return replace(
        code,
        text=f"{code.text}\n\n{begin.text}",
        declared={**code.declared, **begin.declared},
        begin_rows=vectors_of(prod(kernel.out.shape)),
    )


def _clearing(arrays: Sequence[Array]) -> LibraryFunction:
    """Zeros in vectors of the last array."""
    function = LibraryFunction(arrays)
    code, dtype, pointer = function.code, arrays[-1].dtype, function.pointers[-1]
    zeros = code.constant(0, Kind(dtype, LANES))

    def write(at: LaneValue, mask: LaneValue | None) -> None:
        code.store(zeros, code.offset(pointer, dtype, at), mask)

    each_vector(code, prod(arrays[-1].shape), write, FIRST, LAST)
    return function


class _PieceCopy:
    """Writes the copy of a part. pointers: to it, and to its place.

    rows: that threads share, of the first axes
    """

    def __init__(self, code: Code, piece: Piece, pointers: Sequence[str]) -> None:
        self._code = code
        self._dtype = piece.x.dtype
        self._pointers = pointers
        axes = _merged(piece)
        self._around, self._within = _shared(axes)
        self.rows = prod(size for size, _ in self._around)

    def write(self, first: int) -> None:
        """Copy the rows of a call that are of this part, whose own begin at `first`."""
        code, last = self._code, index(first + self.rows)
        start = code.call("smax", FIRST, index(first))
        with code.loop(start, code.call("smin", LAST, last)) as row, ExitStack() as nest:
            pointers = self._row(code.op("sub", row, index(first)))
            *outer, (size, strides) = self._within
            for count, own in outer:
                place = nest.enter_context(code.loop(ZERO, index(count)))
                pointers = self._moved(pointers, place, own)
            self._copy(pointers, size, strides)

    def _row(self, row: LaneValue) -> list[str]:
        """Addresses of a row."""
        pointers = list(self._pointers)
        for size, strides in reversed(self._around):
            place = self._code.op("urem", row, index(size))
            row = self._code.op("udiv", row, index(size))
            pointers = self._moved(pointers, place, strides)
        return pointers

    def _copy(self, pointers: Sequence[str], size: int, strides: Sequence[int]) -> None:
        """Copy the numbers of the last axis."""
        code = self._code
        is_dense = tuple(strides) == (1, 1) and size >= LEAST_VECTOR
        kind = Kind(self._dtype, LANES if is_dense else 1)

        def write(at: LaneValue, mask: LaneValue | None) -> None:
            source, target = self._moved(pointers, at, strides)
            code.store(code.load(source, kind, mask), target, mask)

        if is_dense:
            each_vector(code, size, write)
            return
        with code.loop(ZERO, index(size)) as at:
            write(at, None)

    def _moved(
        self, pointers: Sequence[str], place: LaneValue, strides: Sequence[int]
    ) -> list[str]:
        return [
            self._code.offset(pointer, self._dtype, times(self._code, place, stride))
            for pointer, stride in zip(pointers, strides, strict=True)
        ]


Axis = tuple[int, tuple[int, int]]  # size, and strides of a part and of its place


def _merged(piece: Piece) -> list[Axis]:
    """The axes; those that lie one after the other in both arrays are one."""
    found: list[Axis] = []
    x, place = piece.x, piece.place
    for size, *own in zip(x.shape, x.strides, place.strides, strict=True):
        if size == 1:
            continue
        if found and all(a == b * size for a, b in zip(found[-1][1], own, strict=True)):
            size *= found.pop()[0]
        found.append((size, (own[0], own[1])))
    return found or [(1, (1, 1))]


def _shared(axes: Sequence[Axis]) -> tuple[list[Axis], list[Axis]]:
    """The first axes, whose rows threads share, and the others, of which there is one."""
    count = 0
    while count < len(axes) - 1 and prod(size for size, _ in axes[:count]) < ROWS:
        count += 1
    if count:
        return list(axes[:count]), list(axes[count:])
    ((size, strides),) = axes
    rows = gcd(size, ROWS)
    size //= rows
    return [(rows, (size * strides[0], size * strides[1]))], [(size, strides)]
