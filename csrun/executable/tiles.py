"""Flat arrays in cache-sized pieces."""

from csrun.executable.bind import Array


def tiles(start: int, stop: int, length: int, *arrays: Array) -> list[tuple[Array, ...]]:
    """Views of the elements start..stop of several flat arrays, `length` at a time.

    Shapes: each array [n], n >= stop -> tuples of views [length], the last ones shorter
    """
    pieces = [(at, min(at + length, stop)) for at in range(start, stop, length)]
    return [tuple(array[first:last] for array in arrays) for first, last in pieces]
