"""The scratch arrays of a loop."""

from collections import defaultdict

from csrun.compiler.graph.array import Array, Shape
from csrun.compiler.lair.text import TilePlace

INDEX = "int64"


class ScratchNames:
    """Names scratch arrays after the kernel; a tile has all rows until the loop knows its own."""

    def __init__(self, kernel: str, rows: int) -> None:
        self._kernel = kernel
        self._rows = rows
        self._free: defaultdict[tuple[Shape, str], list[Array]] = defaultdict(list)
        self.tiles: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}
        self.fixed: dict[Array, str] = {}  # tiles that no row changes, and their texts
        self.constants: dict[str, str] = {}  # variables, and their texts

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
        """An array that is not of rows: for each tile again."""
        array = Array(f"{self._kernel}/part_{len(self.parts)}", shape, dtype)
        self.parts[array.name] = array
        return array

    def fill(self, number: int, tail: Shape, dtype: str) -> TilePlace:
        """A tile of one number, bound once: two arrays are compared faster than one and a 0."""
        array = Array(("zeros", "ones")[number], (self._rows, *tail), dtype)
        self.fixed[array] = ("np.zeros", "np.ones")[number] + f"({{0}}, '{dtype}')"
        return TilePlace(array, tiled=True)

    def numbers(self, name: str, text: str) -> TilePlace:
        """An index for each row of a tile, bound once; {1} in the text is how many there are."""
        array = Array(name, (self._rows,), INDEX)
        self.fixed[array] = text
        return TilePlace(array, tiled=True)

    def constant(self, name: str, text: str) -> str:
        """The variable of a constant."""
        self.constants[name] = text
        return name

    def ones(self, count: int, as_column: bool, dtype: str) -> str:
        """The variable of so many ones."""
        shape = (count, 1) if as_column else (count,)
        variable = "_".join(["ones", *map(str, shape)])
        self.constants[variable] = f"np.ones({shape}, '{dtype}')"
        return variable
