"""Random masks and numbers; what is computed with them are elementwise operators."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.random import DropoutMaskOp, UniformOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name
from csrun.kernels.random import NUMBERS_PER_BLOCK, blocks_of, threshold_of


@dataclass(frozen=True)
class DropoutMask(Kernel):
    """mask = draw >= rate, with a draw for each value; a sample has `rows` rows, or the mask has no
    samples.

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
        rows, columns = self.matrix.shape
        shape = (3, 2, rows, blocks_of(columns))
        return (Array(f"{self.mask.name}/words", shape, "uint64"),)

    @property
    def matrix(self) -> Array:
        """View the mask as [B, N], or as one row if it has no samples."""
        shape = self.mask.shape
        samples = shape[0] // self.rows if self.rows else 1
        return Array(self.mask.name, (samples, prod(shape) // samples), self.mask.dtype)

    def prepare(self, name: Name) -> list[str]:
        """Bind the round keys, and the draw over its memory."""
        mask, words = name(self.matrix), name(self.scratch[0])
        numbers = f"{threshold_of(self.rate)}, {self.stream}"
        draw = "MaskDraw" if self.rows else "FixedMaskDraw"
        return [
            "keys = random.round_keys(runtime.seed)",
            f"draw_{self.stream} = random.{draw}({mask}, {words}, {numbers}, keys)",
        ]

    def emit(self, name: Name) -> list[str]:
        return [f"draw_{self.stream}(step)"]


@dataclass(frozen=True)
class Uniform(Kernel):
    """Uniform numbers in (0, 1); samples as of a mask. Shapes: out [B rows, ...] float32"""

    out: Array
    stream: int
    rows: int

    kind = "uniform"

    @property
    def reads(self) -> tuple[Array, ...]:
        return ()

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        rows, columns = self.matrix.shape
        shape = (3, 2, rows, -(-columns // NUMBERS_PER_BLOCK))
        return (Array(f"{self.out.name}/words", shape, "uint64"),)

    @property
    def matrix(self) -> Array:
        """View the numbers as [B, N], or as one row if they have no samples."""
        shape = self.out.shape
        samples = shape[0] // self.rows if self.rows else 1
        return Array(self.out.name, (samples, prod(shape) // samples), self.out.dtype)

    def prepare(self, name: Name) -> list[str]:
        """Bind the round keys, and the draw over its memory."""
        out, words = name(self.matrix), name(self.scratch[0])
        draw = "UniformDraw" if self.rows else "FixedUniformDraw"
        return [
            "keys = random.round_keys(runtime.seed)",
            f"draw_{self.stream} = random.{draw}({out}, {words}, {self.stream}, keys)",
        ]

    def emit(self, name: Name) -> list[str]:
        return [f"draw_{self.stream}(step)"]


def match_uniform(operation: Operation, graph: Graph) -> Kernel | None:
    """Match uniform numbers."""
    assert isinstance(operation, UniformOp)
    graph.take(operation)
    return Uniform(
        graph.layer_of(operation),
        graph.array(operation.out),
        operation.stream.value.data,
        operation.rows_per_sample,
    )


def match_mask(operation: Operation, graph: Graph) -> Kernel | None:
    """Match a mask; masks of runs are drawn by their readers, several runs at a time."""
    assert isinstance(operation, DropoutMaskOp)
    graph.take(operation)
    if operation.runs is not None:
        return None
    return DropoutMask(
        graph.layer_of(operation),
        graph.array(operation.out),
        operation.rate.value.data,
        operation.stream.value.data,
        operation.rows_per_sample,
    )


MATCHERS: dict[str, Matcher] = {DropoutMaskOp.name: match_mask, UniformOp.name: match_uniform}
