"""Rows of a known length, cut into vectors: nothing behind the row is touched."""

from collections.abc import Callable

from csrun.compiler.emit.llvm.code import LANES, Code, Kind, LaneValue, index
from csrun.compiler.emit.llvm.matrices import Matrix

#: A place in a row, and the type of the numbers there.
PieceBody = Callable[[LaneValue, Kind], None]
MOST_PIECES = 8  # that stand one after the other in the code; more are a loop


def each_piece(code: Code, size: int, body: PieceBody, most: int = MOST_PIECES) -> None:
    """Instructions for vectors of 16 numbers, then of 8, 4, 2 and 1.

    most: vectors of 16 that are no loop
    """
    full, at, lanes = size // LANES * LANES, 0, LANES
    if full // LANES > most:
        with code.loop(index(0), index(full), LANES) as place:
            body(place, Kind("float32", LANES))
        at = full
    while at < size:
        while lanes > size - at:
            lanes //= 2
        body(index(at), Kind("float32", lanes))
        at += lanes


def each_step(code: Code, size: int, lanes: int, body: Callable[[LaneValue], None]) -> None:
    """Instructions for places of a row, each so many numbers after the one before."""
    if size <= lanes * MOST_PIECES:
        for at in range(0, size, lanes):
            body(index(at))
        return
    with code.loop(index(0), index(size), lanes) as place:
        body(place)


def lanes_of(width: int) -> int:
    """Lanes of vectors for rows of so many numbers: those that hold a row, or 16."""
    return min(1 << (width - 1).bit_length(), LANES)


def clear_image(code: Code, image: Matrix, size: tuple[int, int]) -> None:
    """Zeros in an image, rows and columns."""
    with code.loop(index(0), index(size[0])) as row:
        start = image.at(code, row).pointer

        def clear(at: LaneValue, kind: Kind) -> None:
            code.store(code.constant(0.0, kind), code.offset(start, "float32", at))

        each_piece(code, size[1], clear)


def reversed_lanes(code: Code, value: LaneValue) -> LaneValue:
    """The last lane first."""
    kind = value.kind
    if kind.lanes == 1:
        return value
    numbers = ", ".join(f"i32 {n}" for n in reversed(range(kind.lanes)))
    order = f"<{kind.lanes} x i32> <{numbers}>"
    return code.make(kind, f"shufflevector {value}, {kind.ir} poison, {order}")
