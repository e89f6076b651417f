"""Batch normalization kernels for training, forward and backward."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.batch_norm import NativeBatchNormBackwardOp, NativeBatchNormOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase, bound_struct
from csrun.executable import nbytes_of

TILE_BYTES = 384 << 10  # of an array's rows: with the two others of a loop they stay in L2

#: Structs of `csrun.kernels.batch_norm`, and the results in them.
FORWARD = (
    "batch_norm.BatchNormResults",
    ("out", "mean", "rstd", "running_mean", "running_variance"),
)
BACKWARD = "batch_norm.BatchNormGradients", ("x", "weight", "bias")


@dataclass(frozen=True)
class BatchNorm(FunctionKernel):
    """One of the functions of `csrun.kernels.batch_norm`, its operands and results.

    Forward: x, weight, bias, running mean and variance -> out, mean, rstd, and the next running
    mean and variance, in place of gradients. Backward: grad, x, mean, rstd, weight -> gradients of
    x, weight and bias. `end` is the text of the number of valid rows, `share` that of their share
    of the batch, for forward; so are the options.

    Shapes: x, out [N, C, P], all others [C]
    """

    end: str
    share: tuple[str, ...]
    options: tuple[float, ...]
    phase: Phase

    kind = "batch_norm"

    @property
    def flops(self) -> int:
        """Operations: per value as many as passes over it."""
        return prod(self.results[0].shape) * (9 if self.phase is Phase.BACKWARD else 6)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return sums of a tile's rows, and rows with a number for each channel."""
        rows, channels, places = self.results[0].shape
        row_bytes = nbytes_of((channels, places), self.results[0].dtype)
        tile = max(1, min(rows, TILE_BYTES // max(row_bytes, 1)))
        numbers = 3 if self.phase is Phase.BACKWARD else 2
        return (
            self.scratch_array("sums", (tile, channels)),
            *(self.scratch_array(f"numbers_{n}", (channels,)) for n in range(numbers)),
        )

    def prepare(self, name: Name) -> list[str]:
        """Bind the struct of results, scratch and options."""
        kind, results = FORWARD if self.phase is Phase.FORWARD else BACKWARD
        sums, *numbers = map(name, self.scratch)
        fields = dict(zip(results, map(name, self.results), strict=True))
        fields |= {"ones": self._ones, "sums": sums, "scratch": f"({', '.join(numbers)})"}
        if self.phase is Phase.FORWARD:
            fields |= zip(("momentum", "eps"), map(repr, self.options), strict=True)
        count = self.results[0].shape[2]
        return [
            "from csrun.kernels import batch_norm",
            f"{self._ones} = np.ones({count}, '{self.results[0].dtype}')",
            bound_struct(self._struct(name), kind, fields),
        ]

    @property
    def _ones(self) -> str:
        return f"ones_{self.results[0].shape[2]}"

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        operands, function = [*map(name, self.operands)], "batch_norm_backward"
        if self.phase is Phase.FORWARD:
            function = "batch_norm"
            operands[3:] = [f"({', '.join(operands[3:])})"]
        arguments = [*operands, self._struct(name), self.end, *self.share]
        return [f"batch_norm.{function}({', '.join(arguments)})"]

    def _struct(self, name: Name) -> str:
        what = "results" if self.phase is Phase.FORWARD else "gradients"
        return f"{name(self.results[0])}_{what}"


def match_batch_norm(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, NativeBatchNormOp | NativeBatchNormBackwardOp)
    graph.take(operation)
    samples, rows = graph.number(operation.samples), operation.rows.value.data
    assert samples is not None, "the number of samples is text"
    if isinstance(operation.samples.owner, FullOp):
        samples = str(int(operation.samples.owner.value.value.data))
    if operation.by_minibatch:  # later samples count, too, but are in other minibatches
        samples = f"min({samples}, {shape_of(type_of(operation.x))[0] // rows})"
    options: tuple[float, ...] = ()
    share: tuple[str, ...] = ()
    if isinstance(operation, NativeBatchNormOp):
        share = (f"{samples} / step.rows" if operation.by_minibatch else "1.0",)
        options = (operation.momentum.value.data, operation.eps.value.data)
    return BatchNorm(
        graph.layer_of(operation),
        tuple(graph.array(value) for value in operation.operands[:-1]),
        tuple(graph.array(value) for value in operation.results),
        samples if rows == 1 else f"{samples} * {rows}",
        share,
        options,
        Phase.FORWARD if options else Phase.BACKWARD,
    )


MATCHERS: dict[str, Matcher] = dict.fromkeys(
    (NativeBatchNormOp.name, NativeBatchNormBackwardOp.name), match_batch_norm
)
