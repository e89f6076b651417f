"""Parts put in their places in a whole: concatenation, and the gradients of slices."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from xdsl.ir import Operation

from csrun.cirh.ops.parts import CatOp, SelectBackwardOp, SliceBackwardOp
from csrun.cirh.ops.shape import index_of, part_of
from csrun.cirh.types import type_of
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase


@dataclass(frozen=True)
class Piece:
    """A value, and its place in the whole."""

    x: Array
    place: Array


@dataclass(frozen=True)
class Assembly(Kernel):
    """out[place] = x for each piece; zero elsewhere, where they are not all of it.

    Shapes: each x that of its place
    """

    pieces: tuple[Piece, ...]
    out: Array
    is_whole: bool
    phase: Phase

    kind = "parts"

    @property
    def reads(self) -> tuple[Array, ...]:
        return tuple(piece.x for piece in self.pieces)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    def emit(self, name: Name) -> list[str]:
        cleared = [] if self.is_whole else [f"{name(self.out)}.fill(0)"]
        return [*cleared, *(f"copyto({name(p.place)}, {name(p.x)})" for p in self.pieces)]


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """A gradient in zeros."""
    assert isinstance(operation, SliceBackwardOp | SelectBackwardOp)
    whole, out = type_of(operation.out), graph.array(operation.out)
    if isinstance(operation, SliceBackwardOp):
        part = part_of(operation.properties, whole)
        place = out.sliced(part.dim, part.start, part.end, part.step)
    else:
        place = out.selected(*index_of(operation.properties, whole))
    return _assembly(operation, (Piece(graph.array(operation.grad), place),), out, graph)


def match_cat(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, CatOp)
    dim, out = operation.dim.value.data, graph.array(operation.out)
    tensors = [graph.array(tensor) for tensor in operation.tensors]
    ends = accumulate((array.shape[dim] for array in tensors), initial=0)
    pieces = tuple(
        Piece(array, out.sliced(dim, start, end))
        for array, (start, end) in zip(tensors, pairwise(ends), strict=True)
    )
    return _assembly(operation, pieces, out, graph)


def _assembly(
    operation: Operation, pieces: tuple[Piece, ...], out: Array, graph: Graph
) -> Assembly:
    graph.take(operation)
    return Assembly(
        graph.layer_of(operation),
        pieces,
        out,
        is_whole=isinstance(operation, CatOp),
        phase=graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {
    SliceBackwardOp.name: match_backward,
    SelectBackwardOp.name: match_backward,
    CatOp.name: match_cat,
}
