"""Softmax and log-softmax, forward and backward: one kernel per operator."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer
from csrun.cirh.ops.loss import LogSoftmaxBackwardOp, LogSoftmaxOp
from csrun.cirh.ops.normalization import SoftmaxBackwardOp, SoftmaxOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase
from csrun.compiler.kernels.cross_entropy import is_all_in_losses
from csrun.executable import nbytes_of

#: Of one array: with the others that a loop uses it stays in a core's L2.
TILE_BYTES = 256 << 10

FUNCTIONS: dict[str, str] = {
    SoftmaxOp.name: "softmax",
    SoftmaxBackwardOp.name: "softmax_backward",
    LogSoftmaxOp.name: "log_softmax",
    LogSoftmaxBackwardOp.name: "log_softmax_backward",
}


@dataclass(frozen=True)
class Softmax(Kernel):
    """One of the functions of `csrun.kernels.softmax`.

    Shapes: operands, out [N, C, I]
    """

    function: str
    operands: tuple[Array, ...]
    out: Array
    phase: Phase

    kind = "softmax"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.operands

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return a tile, and a number for each run of values in it."""
        rows, size, behind = self.out.shape
        of_row = nbytes_of((size, behind), self.out.dtype)
        tile = max(1, min(rows, TILE_BYTES // max(of_row, 1)))
        stem, dtype = self.out.name, self.out.dtype
        return (
            Array(f"{stem}/run_tile", (tile, size, behind), dtype),
            Array(f"{stem}/run_numbers", (tile, behind), dtype),
        )

    @property
    def flops(self) -> int:
        """Operations: per value about as many as passes over it."""
        return prod(self.out.shape) * (4 if len(self.operands) > 1 else 5)

    @property
    def _ones(self) -> str:
        return f"ones_{self.out.shape[1]}"

    def prepare(self, name: Name) -> list[str]:
        ones = f"{self._ones} = np.ones({self.out.shape[1]}, '{self.out.dtype}')"
        return ["from csrun.kernels import softmax", ones]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        arrays = ", ".join(map(name, (*self.operands, self.out, *self.scratch)))
        return [f"softmax.{self.function}({arrays}, {self._ones})"]


def match_softmax(operation: Operation, graph: Graph) -> Kernel | None:
    """Match the single operator, along axis 1 of two or three, if no loss kernel covers it."""
    sizes = graph.array(operation.results[0]).shape
    if integer(operation.properties, "dim") != 1 or len(sizes) > 3:
        return None
    if isinstance(operation, LogSoftmaxOp) and is_all_in_losses(operation, graph):
        return None
    graph.take(operation)
    shape = (*sizes, 1)[:3]
    arrays = []
    for value in (*operation.operands, operation.results[0]):
        array = graph.array(value).reshaped(shape)
        assert array is not None, "adding an axis of size 1 is a view"
        arrays.append(array)
    return Softmax(
        graph.layer_of(operation),
        FUNCTIONS[operation.name],
        tuple(arrays[:-1]),
        arrays[-1],
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = dict.fromkeys(FUNCTIONS, match_softmax)
