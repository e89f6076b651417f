"""Machine code of concatenations, gradients of slices and copies: parts are copied into a result.

A function `name.begin` clears the result if parts do not cover it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    ZERO,
    LibraryFunction,
    each_vector,
    vectors_of,
)
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.emit.llvm.products.matrices import times
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.concatenation import Assembly, Piece
from csrun.compiler.kernels.outputs import CopyOut

ROWS = 64  # minimum elements of a large part that threads share
BLOCK = 1024  # minimum elements of a row that is split into blocks for this
LEAST_VECTOR = 8  # consecutive numbers from which vectors pay


def assembly_code(kernel: Assembly, name: str) -> KernelCode | None:
    """Return machine code over rows of all parts, one part after the other.

    None if a part is empty, has another type, or overlaps the result.
    """
    if not kernel.is_whole and not kernel.out.is_contiguous:
        return None
    for x, place in ((piece.x, piece.place) for piece in kernel.pieces):
        if x.dtype != place.dtype or x.name == place.name or not prod(x.shape):
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


def copy_code(kernel: CopyOut, name: str) -> KernelCode | None:
    """Return machine code of a copy; None as `assembly_code`."""
    piece = Piece(kernel.x, kernel.out)
    return assembly_code(
        Assembly(kernel.layer, (piece,), kernel.out, is_whole=True, phase=kernel.phase), name
    )


def _clearing(arrays: Sequence[Array]) -> LibraryFunction:
    """Write zeros in vectors of the last array."""
    function = LibraryFunction(arrays)
    code, dtype, pointer = function.code, arrays[-1].dtype, function.pointers[-1]
    zeros = code.constant(0, Kind(dtype, LANES))

    def write(at: LaneValue, mask: LaneValue | None) -> None:
        code.store(zeros, code.offset(pointer, dtype, at), mask)

    each_vector(code, prod(arrays[-1].shape), write, FIRST, LAST)
    return function


@dataclass(frozen=True)
class _CopiedAxis:
    """One axis of a part; strides: of the part, and of its target."""

    size: int
    strides: tuple[int, int]

    @property
    def lanes(self) -> int:
        """Lanes of the copy."""
        return LANES if self.strides == (1, 1) and self.size >= LEAST_VECTOR else 1


class _PieceCopy:
    """Writes the copy of a part; pointers: to it, and to its target.

    rows: rows that threads share: those of the first axes, or blocks of these.
    """

    def __init__(self, code: Code, piece: Piece, pointers: Sequence[str]) -> None:
        self._code = code
        self._dtype = piece.x.dtype
        self._pointers = pointers
        self._around, (*self._within, self._last) = _shared(_merged(piece))
        rows = prod(axis.size for axis in self._around)
        blocks = min(-(-ROWS // rows), -(-self._last.size // BLOCK))
        self._vectors = -(-self._last.size // self._last.lanes)
        self._vectors_of_block = -(-self._vectors // blocks)
        self._blocks = -(-self._vectors // self._vectors_of_block)
        self.rows = rows * self._blocks

    def write(self, first: int) -> None:
        """Copy the rows of a call that belong to this part, whose own rows begin at `first`."""
        code, last = self._code, index(first + self.rows)
        start = code.call("smax", FIRST, index(first))
        with code.loop(start, code.call("smin", LAST, last)) as shared, ExitStack() as nest:
            row, block = code.op("sub", shared, index(first)), ZERO
            if self._blocks > 1:
                block = code.op("urem", row, index(self._blocks))
                row = code.op("udiv", row, index(self._blocks))
            pointers = self._row(row)
            for axis in self._within:
                place = nest.enter_context(code.loop(ZERO, index(axis.size)))
                pointers = self._moved(pointers, place, axis)
            self._copy(pointers, block)

    def _row(self, row: LaneValue) -> list[str]:
        """Return the addresses of a row."""
        pointers = list(self._pointers)
        for axis in reversed(self._around):
            place = self._code.op("urem", row, index(axis.size))
            row = self._code.op("udiv", row, index(axis.size))
            pointers = self._moved(pointers, place, axis)
        return pointers

    def _copy(self, pointers: Sequence[str], block: LaneValue) -> None:
        """Copy a block of the last axis."""
        code, axis = self._code, self._last
        kind = Kind(self._dtype, axis.lanes)

        def write(at: LaneValue, mask: LaneValue | None) -> None:
            source, target = self._moved(pointers, at, axis)
            code.store(code.load(source, kind, mask), target, mask)

        first, last = ZERO, index(self._vectors)
        if self._blocks > 1:
            first = times(code, block, self._vectors_of_block)
            last = code.call("smin", code.op("add", first, index(self._vectors_of_block)), last)
        if axis.lanes > 1:
            each_vector(code, axis.size, write, first, last)
            return
        with code.loop(first, last) as at:
            write(at, None)

    def _moved(self, pointers: Sequence[str], place: LaneValue, axis: _CopiedAxis) -> list[str]:
        return [
            self._code.offset(pointer, self._dtype, times(self._code, place, stride))
            for pointer, stride in zip(pointers, axis.strides, strict=True)
        ]


def _merged(piece: Piece) -> list[_CopiedAxis]:
    """Merge axes that are adjacent in both arrays."""
    found: list[_CopiedAxis] = []
    x, place = piece.x, piece.place
    for size, *own in zip(x.shape, x.strides, place.strides, strict=True):
        if size == 1:
            continue
        if found and all(a == b * size for a, b in zip(found[-1].strides, own, strict=True)):
            size *= found.pop().size
        found.append(_CopiedAxis(size, (own[0], own[1])))
    return found or [_CopiedAxis(1, (1, 1))]


def _shared(axes: Sequence[_CopiedAxis]) -> tuple[Sequence[_CopiedAxis], Sequence[_CopiedAxis]]:
    """Return the first axes, whose rows threads share, and the other ones, at least one."""
    count = 0
    while count < len(axes) - 1 and prod(axis.size for axis in axes[:count]) < ROWS:
        count += 1
    return axes[:count], axes[count:]
