"""Rows of a length known at code generation, split into vectors without access beyond the row."""

from collections.abc import Callable

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import Matrix

#: Position in a row, and the type of the numbers there.
PieceBody = Callable[[LaneValue, Kind], None]
MOST_PIECES = 8  # vectors that are unrolled; more are a loop


def each_piece(code: Code, size: int, body: PieceBody, most: int = MOST_PIECES) -> None:
    """Write instructions for vectors of 16 numbers, then of 8, 4, 2 and 1.

    most: number of vectors of 16 that are unrolled.
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
    """Write instructions for positions of a row with a fixed step."""
    if size <= lanes * MOST_PIECES:
        for at in range(0, size, lanes):
            body(index(at))
        return
    with code.loop(index(0), index(size), lanes) as place:
        body(place)


def lanes_of(width: int) -> int:
    """Return the lanes of vectors for rows of this length: enough for a row, or 16."""
    return min(1 << (width - 1).bit_length(), LANES)


def clear_image(code: Code, image: Matrix, size: tuple[int, int]) -> None:
    """Write zeros to rows and columns of an image."""
    with code.loop(index(0), index(size[0])) as row:
        start = image.at(code, row).pointer

        def clear(at: LaneValue, kind: Kind) -> None:
            code.store(code.constant(0.0, kind), code.offset(start, "float32", at))

        each_piece(code, size[1], clear)


def reversed_lanes(code: Code, value: LaneValue) -> LaneValue:
    """Reverse the lanes."""
    kind = value.kind
    if kind.lanes == 1:
        return value
    numbers = ", ".join(f"i32 {n}" for n in reversed(range(kind.lanes)))
    order = f"<{kind.lanes} x i32> <{numbers}>"
    return code.make(kind, f"shufflevector {value}, {kind.ir} poison, {order}")
