"""Parts copied into a result: concatenation, and the gradients of slices."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.shape import CloneOp, SelectBackwardOp, SliceBackwardOp, index_of, part_of
from csrun.cirh.types import type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase
from csrun.compiler.graph.view_ops import places_of


@dataclass(frozen=True)
class Piece:
    """A value, and its location in the result."""

    x: Array
    place: Array


@dataclass(frozen=True)
class Assembly(Kernel):
    """out[place] = x for each piece that is not in place already; zero elsewhere, unless
    `is_whole`.

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
    """Match a gradient within zeros."""
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
    places = places_of(operation, out := graph.array(operation.out))
    pieces = [Piece(graph.array(x), y) for x, y in zip(operation.tensors, places, strict=True)]
    copied = tuple(piece for piece in pieces if piece.x != piece.place)
    kernel = _assembly(operation, copied, out, graph)
    return kernel if copied else None


def match_clone(operation: Operation, graph: Graph) -> Kernel | None:
    """Match a copy that was written in place; other copies are elementwise operators."""
    assert isinstance(operation, CloneOp)
    if graph.array(operation.x) == graph.array(operation.out):
        graph.take(operation)
    return None


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
    CloneOp.name: match_clone,
}
