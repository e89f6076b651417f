"""Dropout: random masks, and values and gradients under them."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.random import DropoutMaskOp, MaskedScaleOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase
from csrun.executable.random import blocks_of, threshold_of


@dataclass(frozen=True)
class DropoutMask(Kernel):
    """mask = draw >= rate, a draw for each value; a sample has `rows` rows, or the mask is of none.

    Shapes: mask [B rows, ...] bool
    """

    mask: Array
    rate: float
    stream: int
    rows: int

    kind = "dropout_mask"

    @property
    def reads(self) -> tuple[Array, ...]:
        return ()

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.mask,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        rows, columns = self._matrix.shape
        shape = (3, 2, rows, blocks_of(columns))
        return (Array(f"{self.mask.name}/words", shape, "uint64"),)

    @property
    def _matrix(self) -> Array:
        """The mask as [B, N], or as one row when it is of no sample."""
        shape = self.mask.shape
        samples = shape[0] // self.rows if self.rows else 1
        return Array(self.mask.name, (samples, prod(shape) // samples), self.mask.dtype)

    def prepare(self, name: Name) -> list[str]:
        """The round keys, and the draw over its memory."""
        mask, words = name(self._matrix), name(self.scratch[0])
        numbers = f"{threshold_of(self.rate)}, {self.stream}"
        draw = "MaskDraw" if self.rows else "FixedMaskDraw"
        return [
            "keys = random.round_keys(runtime.seed)",
            f"draw_{self.stream} = random.{draw}({mask}, {words}, {numbers}, keys)",
        ]

    def emit(self, name: Name) -> list[str]:
        return [f"draw_{self.stream}(step)"]


@dataclass(frozen=True)
class MaskedScale(Kernel):
    """out = x mask scale.

    Shapes: x, mask, out of one shape
    """

    x: Array
    mask: Array
    scale: float
    out: Array
    phase: Phase

    kind = "dropout"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.x, self.mask

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def flops(self) -> int:
        return 2 * prod(self.x.shape)  # by the mask, and by the scale

    def emit(self, name: Name) -> list[str]:
        out = name(self.out)
        return [
            f"multiply({name(self.x)}, {name(self.mask)}, out={out})",
            f"multiply({out}, {self.scale!r}, out={out})",
        ]


def match_mask(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, DropoutMaskOp)
    graph.take(operation)
    return DropoutMask(
        graph.layer_of(operation),
        graph.array(operation.out),
        operation.rate.value.data,
        operation.stream.value.data,
        operation.rows_per_sample,
    )


def match_scale(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, MaskedScaleOp)
    graph.take(operation)
    return MaskedScale(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.mask),
        operation.scale.value.data,
        graph.array(operation.out),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {DropoutMaskOp.name: match_mask, MaskedScaleOp.name: match_scale}
