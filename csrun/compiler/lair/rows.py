"""Row reductions of a loop: maximum, value at the label, gradient of a loss.

For short rows the transpose is reduced, and labels are compared with all columns.
"""

from collections.abc import Iterator

from csrun.compiler.lair.scratch import INDEX, ScratchNames
from csrun.compiler.lair.text import Line, TilePlace

SHORT = 100  # columns from which a reduction along the row is faster than in the transpose

Argument = TilePlace | str


def largest(x: Argument, out: TilePlace, scratch: ScratchNames) -> Iterator[Line]:
    """Write the row maxima. Shapes: x [N, C] -> out [N, 1]"""
    assert isinstance(x, TilePlace), "it is an array"
    size = x.array.shape[1]
    if size >= SHORT:
        yield Line("maximum_reduce({1}, axis=1, keepdims=True, out={0})", (out, x))
        return
    tile = scratch.take((size,), x.array.dtype)
    yield Line("special.largest({1}, {2}, {0})", (out, x, TilePlace(tile, tiled=True)))
    scratch.free_unread(tile)


def pick(x: Argument, labels: Argument, out: TilePlace, scratch: ScratchNames) -> Iterator[Line]:
    """Write the values at the labels. Shapes: x [N, C], labels [N] -> out [N, 1]"""
    assert isinstance(x, TilePlace), "it is an array"
    size, places = x.array.shape[1], TilePlace(scratch.take((), INDEX), tiled=True)
    starts = scratch.numbers(f"starts_{size}", f"np.arange({{1}}) * {size}")
    yield Line("add({0}, {1}, out={2})", (starts, labels, places))
    text = '{1}.reshape(-1).take({2}, out={0}.reshape(-1), mode="clip")'
    yield Line(text, (out, x, places))
    scratch.free_unread(places.array)


def of_label(
    share: float, args: list[Argument], out: TilePlace, scratch: ScratchNames
) -> Iterator[Line]:
    """Write (x - share at the label) scale, and 0 in ignored rows; invalid labels are ignored.

    Shapes: args x [N, C], labels [N], ignored [N], scale [] -> out [N, C]
    """
    x, labels, ignored, scale = args
    if x != out:
        yield Line("copyto({0}, {1})", (out, x))
    less = _less_hot if out.array.shape[1] < SHORT else _less_at
    yield from less(share, labels, out, scratch)
    yield Line("multiply({0}, {1}, out={0})", (out, scale))
    yield Line("if {1}.any(): {0}[{1}] = 0", (out, ignored))


def _less_hot(
    share: float, labels: Argument, out: TilePlace, scratch: ScratchNames
) -> Iterator[Line]:
    """Compare each label with all columns."""
    size, dtype = out.array.shape[1], out.array.dtype
    variable = f"columns_{size}"
    scratch.constants[variable] = f"np.arange({size})"
    hot = TilePlace(scratch.take((size,), "bool"), tiled=True)
    yield Line(f"equal({{0}}[:, None], {variable}, out={{1}})", (labels, hot))
    scratch.free_unread(hot.array)
    if share == 1:
        yield Line("subtract({0}, {1}, out={0})", (out, hot))
        return
    shares = TilePlace(scratch.take((size,), dtype), tiled=True)
    yield Line(f"multiply({{0}}, {share!r}, out={{1}})", (hot, shares))
    yield Line("subtract({0}, {1}, out={0})", (out, shares))
    scratch.free_unread(shares.array)


def _less_at(
    share: float, labels: Argument, out: TilePlace, scratch: ScratchNames
) -> Iterator[Line]:
    """Change one number per row."""
    size, dtype = out.array.shape[1], out.array.dtype
    places = TilePlace(scratch.take((), INDEX), tiled=True)
    is_known = TilePlace(scratch.take((), "bool"), tiled=True)
    numbers = scratch.numbers("numbers", "np.arange({1})")
    yield Line("maximum({0}, 0, out={1})", (labels, places))
    yield Line(f"minimum({{0}}, {size - 1}, out={{0}})", (places,))
    yield Line("equal({0}, {1}, out={2})", (labels, places, is_known))
    taken = "{3}" if share == 1 else f"{{3}} * np.{dtype}({share!r})"
    yield Line(f"{{0}}[{{1}}, {{2}}] -= {taken}", (out, numbers, places, is_known))
    scratch.free_unread(places.array, is_known.array)
