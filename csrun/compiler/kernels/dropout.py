"""Dropout masks; masked values and gradients are elementwise operators."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.random import DropoutMaskOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name
from csrun.kernels.random import blocks_of, threshold_of


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


MATCHERS: dict[str, Matcher] = {DropoutMaskOp.name: match_mask}
