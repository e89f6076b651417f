"""Matrix products of any two operands, without copies for their layout."""

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.base.half_formats import HalfFormat
from csrun.cirh.ops.half import WidenHalfOp
from csrun.cirh.ops.model import StoredOp
from csrun.cirh.ops.products import AddProductOp, MatmulOp, MmOp
from csrun.compiler.graph.accumulate import add_product, tile_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase
from csrun.compiler.graph.view_ops import base_of, view_of, views_between
from csrun.compiler.passes.widths import is_half


@dataclass(frozen=True)
class Product(Kernel):
    """out = a b; NumPy passes the strides of all three matrices to BLAS, and copies none.

    With `adds` the product is accumulated.
    half: 16-bit format of b, if it is stored as words: machine code widens them when packing b, the
        NumPy form in a copy.
    are_halves: both operands only have numbers of the module's 16-bit format.

    Shapes: a [..., M, K], b [..., K, N] -> out [..., M, N], leading axes broadcast
    """

    a: Array
    b: Array
    out: Array
    phase: Phase
    adds: bool = False
    half: HalfFormat | None = None
    are_halves: bool = False

    kind = "product"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.a, self.b

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return a tile of the product, before it is added."""
        return (tile_of(self.out, self.layer),) if self.adds else ()

    @property
    def flops(self) -> int:
        """Two for each multiply-add."""
        return 2 * prod(self.out.shape) * self.a.shape[-1]

    def adding(self) -> Self:
        return replace(self, adds=True)

    def prepare(self, name: Name) -> list[str]:
        return [] if self.half is None else ["from csrun.kernels import special"]

    def emit(self, name: Name) -> list[str]:
        if self.adds:
            tile = tile_of(self.out, self.layer)
            return add_product(self.a, self.b, self.out, tile, name)
        out = name(self.out)
        shapes = " x ".join(str(list(array.shape)) for array in (self.a, self.b))
        b = name(self.b)
        if self.half is not None:
            b = f"special.widened({b}, {self.half.mantissa_bits}, {self.half.bias})"
        return [f"matmul({name(self.a)}, {b}, out={out})  # {shapes}"]


def match_product(operation: Operation, graph: Graph) -> Kernel:
    """Match any matrix product."""
    assert isinstance(operation, MmOp | MatmulOp)
    graph.take(operation)
    a, out = graph.array(operation.lhs), graph.array(operation.out)
    made = partial(
        Product,
        graph.layer_of(operation),
        phase=graph.phase_of(operation),
        are_halves=_are_halves(operation),
    )
    words = _words_of(operation, graph) if out.is_contiguous else None
    if words is not None:
        return made(a=a, b=words[0], out=out, half=words[1])
    return made(a=a, b=graph.array(operation.rhs), out=out)


def _are_halves(operation: MmOp | MatmulOp | AddProductOp) -> bool:
    return is_half(operation.lhs) and is_half(operation.rhs)


def _words_of(operation: MmOp | MatmulOp, graph: Graph) -> tuple[Array, HalfFormat] | None:
    """Return the weights under a widening and their format; None for any other value."""
    widened = base_of(operation.rhs)
    owner = widened.owner
    if isinstance(operation, MatmulOp) or not isinstance(owner, WidenHalfOp):
        return None
    if base_of(operation.lhs) is widened:
        return None
    if not isinstance(owner.x.owner, StoredOp):
        return None
    found: Array | None = graph.array(owner.x)
    for view in views_between(widened, operation.rhs):
        found = None if found is None else view_of(view, found)
    if found is None:
        return None
    graph.read_as_words(operation, owner)
    return found, HalfFormat("", *(int(owner.options[n]) for n in ("mantissa_bits", "bias")))


@dataclass(frozen=True)
class AddedProduct(Product):
    """out = before + a b, usually in place of `before`: the product is then added there, tile by
    tile.
    """

    before: Array = field(kw_only=True)

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.a, self.b, self.before

    def emit(self, name: Name) -> list[str]:
        copied = self.before != self.out
        copy = [f"copyto({name(self.out)}, {name(self.before)})"] if copied else []
        return [*copy, *super().emit(name)]


def match_added(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, AddProductOp)
    graph.take(operation)
    return AddedProduct(
        graph.layer_of(operation),
        a=graph.array(operation.lhs),
        b=graph.array(operation.rhs),
        out=graph.array(operation.out),
        phase=graph.phase_of(operation),
        adds=True,
        are_halves=_are_halves(operation),
        before=graph.array(operation.before),
    )


MATCHERS: dict[str, Matcher] = {
    MmOp.name: match_product,
    MatmulOp.name: match_product,
    AddProductOp.name: match_added,
}
