"""The scratch arrays of a loop."""

from collections import defaultdict

from csrun.compiler.array import Array, Shape


class Scratch:
    """Names scratch arrays after the kernel; a tile has all rows until the loop knows its own."""

    def __init__(self, kernel: str, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._free: defaultdict[tuple[Shape, str], list[Array]] = defaultdict(list)
        self.tiles: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}

    def take(self, tail: Shape, dtype: str) -> Array:
        """A tile whose rows have this shape: one that is free, else a new one."""
        free = self._free[tail, dtype]
        if free:
            return free.pop()
        array = Array(f"{self._kernel}/tile_{len(self.tiles)}", (self._rows, *tail), dtype)
        self.tiles[array.name] = array
        return array

    def give_back(self, *arrays: Array) -> None:
        """Tiles whose values nobody reads any more."""
        for array in arrays:
            self._free[array.shape[1:], array.dtype].append(array)

    def part(self, shape: Shape, dtype: str) -> Array:
        """An array that is not of rows: for each tile anew."""
        array = Array(f"{self._kernel}/part_{len(self.parts)}", shape, dtype)
        self.parts[array.name] = array
        return array
