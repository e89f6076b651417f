"""Scratch arrays of a loop."""

from collections import defaultdict

from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.lair.text import TilePlace

INDEX = "int64"


class ScratchNames:
    """Names scratch arrays after the kernel; a tile has all rows until the loop knows its tile
    size.
    """

    def __init__(self, kernel: str, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._free: defaultdict[tuple[Shape, str], list[Array]] = defaultdict(list)
        self.tiles: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}
        self.fixed: dict[Array, str] = {}  # tiles that are constant over rows, and their texts
        self.constants: dict[str, str] = {}  # variables, and their texts

    def take(self, tail: Shape, dtype: str) -> Array:
        """Return a tile whose rows have this shape: a free one, else a new one."""
        free = self._free[tail, dtype]
        if free:
            return free.pop()
        array = Array(f"{self._kernel}/tile_{len(self.tiles)}", (self._rows, *tail), dtype)
        self.tiles[array.name] = array
        return array

    def free_unread(self, *arrays: Array) -> None:
        """Free tiles whose values are no longer read."""
        for array in arrays:
            self._free[array.shape[1:], array.dtype].append(array)

    def part(self, shape: Shape, dtype: str) -> Array:
        """Return an array without rows that each tile reuses."""
        array = Array(f"{self._kernel}/part_{len(self.parts)}", shape, dtype)
        self.parts[array.name] = array
        return array

    def fill(self, number: int, tail: Shape, dtype: str) -> TilePlace:
        """Return a tile filled with a number, bound once: comparing two arrays is faster than with
        a scalar.
        """
        array = Array(("zeros", "ones")[number], (self._rows, *tail), dtype)
        self.fixed[array] = ("np.zeros", "np.ones")[number] + f"({{0}}, '{dtype}')"
        return TilePlace(array, tiled=True)

    def numbers(self, name: str, text: str) -> TilePlace:
        """Return an index for each row of a tile, bound once; {1} in the text is the number of
        rows.
        """
        array = Array(name, (self._rows,), INDEX)
        self.fixed[array] = text
        return TilePlace(array, tiled=True)

    def constant(self, name: str, text: str) -> str:
        """Return the variable of a constant."""
        self.constants[name] = text
        return name

    def ones(self, count: int, as_column: bool, dtype: str) -> str:
        """Return the variable of a vector of ones."""
        shape = (count, 1) if as_column else (count,)
        variable = "_".join(["ones", *map(str, shape)])
        self.constants[variable] = f"np.ones({shape}, '{dtype}')"
        return variable
