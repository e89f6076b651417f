"""Constants with several values: in the program's text, or in separate files."""

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.base.array_digests import file_of
from csrun.cirh.ops.constant_arrays import AnyArray, ArrayByDigest, ConstantOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph, Phase
from csrun.compiler.graph.kernel import Kernel, Matcher, Name


@dataclass(frozen=True)
class ConstantKernel(Kernel):
    """out = the values; written in each step, because other arrays share its buffer.

    Shapes: any
    """

    values: str | ArrayByDigest
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
        """Return the line with the values as an array."""
        if isinstance(self.values, ArrayByDigest):
            made = f"constants.loaded(__file__, {self.values.digest!r})"
        else:
            made = f"constants.unpacked({self.values!r}, {self.out.dtype!r}, {self.out.shape!r})"
        return ["from csrun.kernels import constants", f"{name(self.out)}_values = {made}"]

    def emit(self, name: Name) -> list[str]:
        out = name(self.out)
        return [f"copyto({out}, {out}_values)"]


def match_constant(operation: Operation, graph: Graph) -> ConstantKernel:
    """Match the single operator."""
    assert isinstance(operation, ConstantOp)
    graph.take(operation)
    return ConstantKernel(
        graph.layer_of(operation),
        operation.values.data,
        graph.array(operation.out),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {ConstantOp.name: match_constant}


def files_of(kernels: Iterable[Kernel]) -> dict[str, AnyArray]:
    """Return the large arrays of a program, by the names of their files."""
    large = [k.values for k in kernels if isinstance(k, ConstantKernel)]
    return {
        file_of(values.digest): values.array
        for values in large
        if isinstance(values, ArrayByDigest) and values.array is not None
    }
