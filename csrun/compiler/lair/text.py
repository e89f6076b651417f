"""Text of a loop over tiles of rows: NumPy calls on views that are bound once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Name
from csrun.executable import INPUT


@dataclass(frozen=True)
class TilePlace:
    """Location of a value in an array of the program or scratch, in full or as a tile."""

    array: Array
    tiled: bool
    shape: tuple[int, ...] | None = None  # of a view of the tile, without the rows


@dataclass(frozen=True)
class Line:
    """A call, with placeholders for the arrays; a tile's `part` is added to the first of them."""

    text: str
    places: tuple[TilePlace | str, ...]
    part: TilePlace | None = None


@dataclass(frozen=True)
class LoopText:
    """Text of a loop with known calls and locations of values.

    pieces: variable of its tiles.
    tiled: arrays of the program that are split into tiles.
    own: scratch tiles, with all rows.
    fixed: tiles that are constant over rows, and their texts.
    sums: arrays that start at 0 if there are several tiles.
    constants: variables, and their texts.
    """

    pieces: str
    rows: int
    tile: int
    lines: tuple[Line, ...]
    tiled: tuple[Array, ...]
    own: tuple[Array, ...]
    fixed: Mapping[Array, str]
    sums: tuple[Array, ...]
    constants: Mapping[str, str]
    needs_special: bool

    @property
    def is_cut(self) -> bool:
        """Return whether there is more than one tile."""
        return self.tile < self.rows

    def sized(self, array: Array) -> Array:
        """Return a tile with its final number of rows; another array unchanged."""
        if array.name not in self._own_names and array not in self.fixed:
            return array
        return Array(array.name, (self.tile, *array.shape[1:]), array.dtype)

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(array.name for array in self.own)

    @property
    def imports(self) -> list[str]:
        """Return the line that imports what the lines call besides NumPy."""
        return ["from csrun.kernels import special"] if self.needs_special else []

    def prepare(self, name: Name) -> list[str]:
        """Return the lines that run once, when the program is bound."""
        lines = self.imports
        lines += [f"{variable} = {text}" for variable, text in self.constants.items()]
        for array, text in self.fixed.items():
            shape = self.sized(array).shape
            lines.append(f"{self._name(array, name)} = {text.format(shape, shape[0])}")
        if self.is_cut:
            arrays = ", ".join(map(name, self._bound()))
            own = ", ".join(self._name(a, name) for a in (*self.own, *self.fixed))
            pieces = f"row_tiles({self.rows}, {self.tile}, [{arrays}], [{own}])"
            lines.append(f"{self.pieces} = {pieces}")
        return lines

    def emit(self, name: Name) -> list[str]:
        lines = [line for each in self.lines for line in self._line(each, name)]
        if not self.is_cut:
            return lines
        tiles = (*self._bound(), *self.own, *self.fixed)
        names = ", ".join(["rows", *(self._tile_name(array, name) for array in tiles)])
        inputs = [a for a in self.tiled if a.name.startswith(INPUT)]
        cut = [f"{self._tile_name(array, name)} = {name(array)}[rows]" for array in inputs]
        return [
            *(f"{name(array)}.fill(0)" for array in self.sums),
            f"for {names} in {self.pieces}:",
            *(f"    {line}" for line in (*cut, *lines)),
        ]

    def _line(self, line: Line, name: Name) -> list[str]:
        texts = [p if isinstance(p, str) else self._text(p, name) for p in line.places]
        if line.part is None or not self.is_cut:
            return [line.text.format(*texts)]
        out, part = texts[0], self._text(line.part, name)
        return [line.text.format(part, *texts[1:]), f"add({out}, {part}, out={out})"]

    def _text(self, place: TilePlace, name: Name) -> str:
        is_cut = self.is_cut and place.tiled
        text = (self._tile_name if is_cut else self._name)(place.array, name)
        if place.shape is None:
            return text
        if not prod(place.shape):  # of an empty array NumPy infers no size
            return f"{text}.reshape((len({text}), *{place.shape}))"
        return f"{text}.reshape({(-1, *place.shape)})"

    def _bound(self) -> list[Array]:
        """Return the arrays whose tiles are known before a batch exists."""
        return [a for a in self.tiled if not a.name.startswith(INPUT)]

    def _name(self, array: Array, name: Name) -> str:
        sized = self.sized(array)
        if array in self.fixed:
            return "_".join([array.name, array.dtype, *map(str, sized.shape)])
        return name(sized)

    def _tile_name(self, array: Array, name: Name) -> str:
        return f"{self._name(array, name)}_rows"
