"""Connectionist temporal classification: a kernel for the loss, one for its gradient."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer
from csrun.cirh.ops.ctc import CtcLossBackwardOp, CtcLossOp, CtcOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase

FLOPS = 12  # FLOPs of a state per time step and direction: three exponentials, a logarithm, sums


@dataclass(frozen=True)
class Ctc(FunctionKernel):
    """One of the functions of `csrun.kernels.ctc`.

    operands: those of the operator.
    zero_infinity: treat infinite losses as 0.
    is_gradient: compute the gradient of the loss.
    """

    blank: int
    zero_infinity: bool
    is_gradient: bool
    phase: Phase

    kind = "ctc_loss"

    @property
    def _paths(self) -> tuple[int, int, int]:
        """Shape of the forward variables: each state after 0, 1, … time steps."""
        log_probs, targets = self.operands[-4:-2]
        samples, longest = targets.shape
        return log_probs.shape[0] + 1, samples, 2 * longest + 1

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return all forward variables, for the gradient."""
        return (self.scratch_array("paths", self._paths),) if self.is_gradient else ()

    @property
    def flops(self) -> int:
        """Operations; the gradient includes those of the loss."""
        return FLOPS * prod(self._paths) * (3 if self.is_gradient else 1)

    def prepare(self, name: Name) -> list[str]:
        return ["from csrun.kernels import ctc"]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        function = "ctc_loss_backward" if self.is_gradient else "ctc_loss"
        arrays = ", ".join(map(name, (*self.operands, *self.results, *self.scratch)))
        where = f"layer {self.layer}"
        return [f"ctc.{function}({arrays}, {self.blank}, {self.zero_infinity}, {where!r})"]


def match_ctc(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, CtcOp)
    graph.take(operation)
    return Ctc(
        graph.layer_of(operation),
        tuple(map(graph.array, operation.operands)),
        tuple(map(graph.array, operation.results)),
        integer(operation.properties, "blank"),
        bool(integer(operation.properties, "zero_infinity")),
        isinstance(operation, CtcLossBackwardOp),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = dict.fromkeys((CtcLossOp.name, CtcLossBackwardOp.name), match_ctc)
