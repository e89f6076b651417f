"""Rows of a known length, cut into vectors: nothing behind the row is touched."""

from collections.abc import Callable

from csrun.compiler.emit.llvm.code import LANES, Code, Kind, LaneValue, index

#: A place in a row, and the type of the numbers there.
PieceBody = Callable[[LaneValue, Kind], None]
MOST_PIECES = 8  # that stand one after the other in the code; more are a loop


def each_piece(code: Code, size: int, body: PieceBody) -> None:
    """Instructions for vectors of 16 numbers, then of 8, 4, 2 and 1."""
    full, at, lanes = size // LANES * LANES, 0, LANES
    if full // LANES > MOST_PIECES:
        with code.loop(index(0), index(full), LANES) as place:
            body(place, Kind("float32", LANES))
        at = full
    while at < size:
        while lanes > size - at:
            lanes //= 2
        body(index(at), Kind("float32", lanes))
        at += lanes


def store_first(code: Code, value: LaneValue, pointer: str, count: int) -> None:
    """Store the first lanes of a vector, so many of them."""
    if count == value.kind.lanes:
        code.store(value, pointer)
        return

    def store(at: LaneValue, kind: Kind) -> None:
        first = int(at.text)
        numbers = ", ".join(f"i32 {first + n}" for n in range(kind.lanes))
        if kind.lanes == 1:
            piece = code.make(kind, f"extractelement {value}, i64 {first}")
        else:
            order = f"<{kind.lanes} x i32> <{numbers}>"
            piece = code.make(kind, f"shufflevector {value}, {value.kind.ir} poison, {order}")
        code.store(piece, code.offset(pointer, "float32", at))

    each_piece(code, count, store)
