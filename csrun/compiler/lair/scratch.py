"""The scratch arrays of a loop: tiles of rows that values take over from each other."""

from csrun.compiler.array import Array


class Scratch:
    """Names scratch arrays after the kernel; a tile has all rows until the loop knows its own."""

    def __init__(self, kernel: str, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._free: list[Array] = []
        self.tiles: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}

    def take(self, tail: tuple[int, ...], dtype: str) -> Array:
        """A tile whose rows have this shape: one that is free, else a new one."""
        for array in self._free:
            if (array.shape[1:], array.dtype) == (tail, dtype):
                self._free.remove(array)
                return array
        array = Array(f"{self._kernel}/tile_{len(self.tiles)}", (self._rows, *tail), dtype)
        self.tiles[array.name] = array
        return array

    def give_back(self, *arrays: Array) -> None:
        """Tiles whose values nobody reads any more."""
        self._free += arrays

    def part(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array that is not of rows: for each tile anew."""
        array = Array(f"{self._kernel}/part_{len(self.parts)}", shape, dtype)
        self.parts[array.name] = array
        return array
