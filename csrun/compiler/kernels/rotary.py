"""Rotary position embedding: one kernel for forward and backward."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.rotary import RotaryEmbeddingOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Matcher, Name, Phase, UnaryKernel


@dataclass(frozen=True)
class Rotary(UnaryKernel):
    """Rotation of pairs of the first `size` values of the last axis, by their position along
    `dim`.
    """

    dim: int
    size: int
    base: float
    is_interleaved: bool
    is_inverse: bool
    phase: Phase

    kind = "rotary"

    @property
    def flops(self) -> int:
        """Four products and two sums per pair."""
        return 3 * prod(self.x.shape[:-1]) * self.size

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return scratch; adjacent pairs rotate as complex numbers, split halves need an
        intermediate product.
        """
        if self.is_interleaved:
            return ()
        outer = self.x.shape[1:-1] if self.dim else self.x.shape[:-1]
        return (Array(f"{self.out.name}/part", (*outer, self.size // 2), self.out.dtype),)

    def prepare(self, name: Name) -> list[str]:
        """Bind the factors, one table for all equal rotations."""
        axes = len(self.x.shape) - 2 - self.dim
        arguments = (self._length, self.size, self.base, self.is_inverse, self.x.dtype, axes)
        table = f"rotary.rotation_factors{arguments!r}"
        factors = table if self.is_interleaved else f"rotary.cosines_and_sines({table})"
        return ["from csrun.kernels import rotary", f"{self._factors} = {factors}"]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        x, out = name(self.x), name(self.out)
        if self.is_interleaved:
            return [f"rotary.rotate_pairs({x}, {out}, {self._factors})"]
        return [f"rotary.rotate_halves({x}, {out}, *{self._factors}, {name(self.scratch[0])})"]

    @property
    def _length(self) -> int:
        return self.x.shape[self.dim]

    @property
    def constants(self) -> tuple[str, ...]:
        if self.is_interleaved:
            return (self._factors,)
        return tuple(f"{self._factors}[{n}]" for n in range(2))

    @property
    def _factors(self) -> str:
        """Return the variable of the factors for these positions, pairs and base."""
        base = repr(self.base).translate({ord("."): "_", ord("-"): "m", ord("+"): "p"})
        kind = "pairs" if self.is_interleaved else "halves"
        direction = "back" if self.is_inverse else "on"
        axes = len(self.x.shape) - 2 - self.dim
        return f"turns_{kind}_{direction}_{self._length}_{self.size}_{base}_{axes}"


def match_rotary(operation: Operation, graph: Graph) -> Rotary:
    """Match the single operator."""
    assert isinstance(operation, RotaryEmbeddingOp)
    graph.take(operation)
    return Rotary(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        operation.dim.value.data,
        operation.rotary_dim.value.data,
        operation.base.value.data,
        bool(operation.is_interleaved.value.data),
        bool(operation.is_inverse.value.data),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {RotaryEmbeddingOp.name: match_rotary}
