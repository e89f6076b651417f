"""Constants of several values: they stand in the program's text."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.model import ConstantOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph, Phase
from csrun.compiler.graph.kernel import Kernel, Matcher, Name


@dataclass(frozen=True)
class ConstantKernel(Kernel):
    """out = the values; written each step, as its buffer is others', too.

    Shapes: out of any
    """

    values: str
    out: Array
    phase: Phase

    kind = "constant"

    @property
    def reads(self) -> tuple[Array, ...]:
        return ()

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    def prepare(self, name: Name) -> list[str]:
        """The values as an array."""
        shape, dtype = self.out.shape, self.out.dtype
        made = f"constants.unpacked({self.values!r}, {dtype!r}, {shape!r})"
        return ["from csrun.kernels import constants", f"{name(self.out)}_values = {made}"]

    def emit(self, name: Name) -> list[str]:
        out = name(self.out)
        return [f"copyto({out}, {out}_values)"]


def match_constant(operation: Operation, graph: Graph) -> ConstantKernel:
    """The operator alone."""
    assert isinstance(operation, ConstantOp)
    graph.take(operation)
    return ConstantKernel(
        graph.layer_of(operation),
        operation.values.data,
        graph.array(operation.out),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {ConstantOp.name: match_constant}
