"""Discrete Fourier transforms."""

from dataclasses import dataclass
from math import ceil, log2, prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer, ints, number
from csrun.cirh.ops.fourier import OPS, FourierOp
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase

FLOPS = 5  # FLOPs of a complex number and halving: a twiddle factor for two, a sum and a difference


@dataclass(frozen=True)
class Fourier(FunctionKernel):
    """One of the functions of `csrun.kernels.fourier`.

    option: its last argument, on sides, direction or size.
    """

    function: str
    dims: tuple[int, ...]
    scale: float
    option: bool | int
    phase: Phase

    kind = "fourier"

    @property
    def flops(self) -> int:
        """Operations of transforms whose sizes are powers of two."""
        (whole, *_) = sorted((*self.operands, *self.results), key=lambda x: -prod(x.shape))
        return sum(
            FLOPS * prod(whole.shape) * ceil(log2(max(whole.shape[d], 2))) for d in self.dims
        )

    def prepare(self, name: Name) -> list[str]:
        return ["from csrun.kernels import fourier"]

    def emit(self, name: Name) -> list[str]:
        arrays = ", ".join(map(name, (*self.operands, *self.results)))
        return [f"fourier.{self.function}({arrays}, {self.dims}, {self.scale!r}, {self.option})"]


def match_fourier(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, FourierOp)
    graph.take(operation)
    given = operation.properties
    (option,) = given.keys() & {"onesided", "inverse", "size"}
    value = integer(given, option)
    return Fourier(
        graph.layer_of(operation),
        tuple(map(graph.array, operation.operands)),
        tuple(map(graph.array, operation.results)),
        operation.name.removeprefix("cirh."),
        ints(given, "dims"),
        number(given, "scale"),
        value if option == "size" else bool(value),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {op.name: match_fourier for op in OPS}
