"""Small kernels at the end of a step: the loss of arbitrary arithmetic, a copied output, argmax."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.model import LossOp, OutputOp
from csrun.cirh.ops.reductions import ArgmaxOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS, Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, UnaryKernel


@dataclass(frozen=True)
class LossOfMean(UnaryKernel):
    """The sum of the loss for the runtime, from the mean over all that counts in the global batch.

    Shapes: x [] -> out float64[1]
    """

    count: int | None

    kind = "loss"

    @property
    def count_text(self) -> str:
        """Text of the number that the loss is a mean over."""
        return "step.rows" if self.count is None else f"step.counts[{self.count}]"

    def emit(self, name: Name) -> list[str]:
        x, out = name(self.x), name(self.out)
        return [f"multiply({x}, {self.count_text}, out={out}, dtype='float64')"]


def match_loss(operation: Operation, graph: Graph) -> Kernel | None:
    """Match the mark of a loss that no loss kernel has covered."""
    assert isinstance(operation, LossOp)
    if graph.number(operation.value) is not None:
        return None
    graph.take(operation)
    layer, x = graph.layer_of(operation), graph.array(operation.value)
    return LossOfMean(layer, x, LOSS, graph.loss_count())


@dataclass(frozen=True)
class CopyOut(UnaryKernel):
    """out = x; for an input or a buffer that may be overwritten before the host reads it.

    Shapes: x and out have the same shape
    """

    kind = "output"

    def emit(self, name: Name) -> list[str]:
        return [f"copyto({name(self.out)}, {name(self.x)})"]


def copy_out(operation: OutputOp, graph: Graph) -> CopyOut:
    x = graph.array(operation.value)
    name = f"output/{operation.symbol.data}"
    return CopyOut(graph.layer_of(operation), x, Array(name, x.shape, x.dtype))


@dataclass(frozen=True)
class Argmax(UnaryKernel):
    """out = argmax of x along `dim`.

    Shapes: x [..., N, ...] -> out [..., ...] int64
    """

    dim: int

    kind = "argmax"

    def emit(self, name: Name) -> list[str]:
        return [f"{name(self.x)}.argmax({self.dim}, out={name(self.out)})"]


def match_argmax(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, ArgmaxOp)
    graph.take(operation)
    return Argmax(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        operation.dim.value.data,
    )


MATCHERS: dict[str, Matcher] = {LossOp.name: match_loss, ArgmaxOp.name: match_argmax}
