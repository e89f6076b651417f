"""Factorizations and functions of small dense matrices."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer
from csrun.cirh.ops.linear_algebra import OPS, MatrixOp
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase

FLOPS = 2  # FLOPs of an element of the largest operand, for each row of it


@dataclass(frozen=True)
class MatrixFunction(FunctionKernel):
    """One of the functions of `csrun.kernels.linear_algebra`. options: its last arguments."""

    function: str
    options: tuple[bool, ...]
    phase: Phase

    kind = "linear_algebra"

    @property
    def flops(self) -> int:
        """Operations of an order of magnitude: those of a product."""
        return FLOPS * max(prod(x.shape) * x.shape[-1] for x in self.operands)

    def prepare(self, name: Name) -> list[str]:
        return ["from csrun.kernels import linear_algebra"]

    def emit(self, name: Name) -> list[str]:
        arrays = map(name, (*self.operands, *self.results))
        arguments = ", ".join((*arrays, *map(str, self.options)))
        return [f"linear_algebra.{self.function}({arguments})"]


def match_matrix_function(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, MatrixOp)
    graph.take(operation)
    options = (name for name in operation.get_irdl_definition().properties if name != "scope")
    return MatrixFunction(
        graph.layer_of(operation),
        tuple(map(graph.array, operation.operands)),
        tuple(map(graph.array, operation.results)),
        operation.name.removeprefix("cirh."),
        tuple(bool(integer(operation.properties, name)) for name in options),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {op.name: match_matrix_function for op in OPS}
