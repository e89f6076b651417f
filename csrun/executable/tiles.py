"""Flat arrays in cache-sized pieces."""

from collections.abc import Sequence

from csrun.executable.bind import Array


def tiles(start: int, stop: int, length: int, *arrays: Array) -> list[tuple[Array, ...]]:
    """Views of the elements start..stop of several flat arrays, `length` at a time.

    Shapes: each array [n], n >= stop -> tuples of views [length], the last ones shorter
    """
    pieces = [(at, min(at + length, stop)) for at in range(start, stop, length)]
    return [tuple(array[first:last] for array in arrays) for first, last in pieces]


def row_tiles(
    rows: int, tile: int, arrays: Sequence[Array], scratch: Sequence[Array]
) -> list[tuple[slice | Array, ...]]:
    """The pieces of a loop over rows: where they are, their views of arrays and of scratch arrays.

    Shapes: arrays [rows, ...], scratch [tile, ...] -> views [tile, ...], the last ones shorter
    """
    pieces = [slice(at, min(at + tile, rows)) for at in range(0, rows, tile)]
    return [
        (piece, *(a[piece] for a in arrays), *(s[: piece.stop - piece.start] for s in scratch))
        for piece in pieces
    ]
