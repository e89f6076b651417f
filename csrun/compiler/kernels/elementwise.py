"""Arithmetic value by value with broadcasting, sums over axes, and the loss of any arithmetic."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.base import ints
from csrun.cirh.ops.elementwise import AddOp, DivOp, ExpOp, LogOp, MulOp, NegOp, SqrtOp, SubOp
from csrun.cirh.ops.model import LossOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.cirh.types import is_float, shape_of, type_of
from csrun.compiler.array import LOSS, Array
from csrun.compiler.graph import Graph, parameter_of
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase, UnaryKernel

#: NumPy's function for each operator.
CALLS: dict[type[Operation], str] = {
    AddOp: "add",
    SubOp: "subtract",
    MulOp: "multiply",
    DivOp: "divide",
    NegOp: "negative",
    ExpOp: "exp",
    LogOp: "log",
    SqrtOp: "sqrt",
}
#: Those whose results on integers are integers.
OF_INTEGERS = (AddOp, SubOp, MulOp, NegOp)


@dataclass(frozen=True)
class Elementwise(Kernel):
    """out = call(operands); an operand is an array, or the text of a number.

    Shapes: operands broadcast to out's
    """

    call: str
    operands: tuple[Array | str, ...]
    weights: tuple[str, ...]
    out: Array
    phase: Phase

    kind = "elementwise"

    @property
    def reads(self) -> tuple[Array, ...]:
        """The operands that are arrays."""
        return tuple(operand for operand in self.operands if isinstance(operand, Array))

    @property
    def writes(self) -> tuple[Array, ...]:
        """The result."""
        return (self.out,)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Operands that are weights."""
        return self.weights

    @property
    def flops(self) -> int:
        """One for each value."""
        return prod(self.out.shape)

    def emit(self, name: Name) -> list[str]:
        """One call."""
        operands = [o if isinstance(o, str) else name(o) for o in self.operands]
        return [f"{self.call}({', '.join(operands)}, out={name(self.out)})"]


@dataclass(frozen=True)
class Total(UnaryKernel):
    """out = sum of x over `dims`.

    Shapes: x any -> out without `dims`, or with axes of size 1 in their place
    """

    dims: tuple[int, ...]
    keepdim: bool
    phase: Phase

    kind = "sum"

    @property
    def flops(self) -> int:
        """One for each value."""
        return prod(self.x.shape)

    def emit(self, name: Name) -> list[str]:
        """One call."""
        where = f"axis={self.dims}, keepdims={self.keepdim}"
        return [f"add_reduce({name(self.x)}, {where}, out={name(self.out)})"]


@dataclass(frozen=True)
class Expand(UnaryKernel):
    """out = x, repeated.

    Shapes: x broadcasts to out's
    """

    phase: Phase

    kind = "expand"

    def emit(self, name: Name) -> list[str]:
        """One call."""
        return [f"copyto({name(self.out)}, {name(self.x)})"]


@dataclass(frozen=True)
class LossOfRows(UnaryKernel):
    """The loss that the runtime takes, a sum over rows, from a mean over the global batch's rows.

    Shapes: x [] -> out float64[1]
    """

    kind = "loss"

    def emit(self, name: Name) -> list[str]:
        """One call, in double precision."""
        return [f"multiply({name(self.x)}, step.rows, out={name(self.out)}, dtype='float64')"]


def match(operation: Operation, graph: Graph) -> Kernel | None:
    """Arithmetic on arrays; on numbers alone it is text in its readers."""
    out = operation.results[0]
    if graph.literal(out) is not None:
        graph.take(operation)
        return None
    if not is_float(type_of(out)) and not isinstance(operation, OF_INTEGERS):
        return None
    graph.take(operation)
    weights = [parameter_of(value) for value in operation.operands]
    return Elementwise(
        graph.layer_of(operation),
        CALLS[type(operation)],
        tuple(_operand(value, graph) for value in operation.operands),
        tuple(weight.symbol.data for weight in weights if weight is not None),
        graph.array(out),
        graph.phase_of(operation),
    )


def match_sum(operation: Operation, graph: Graph) -> Kernel | None:
    """A sum that is no layer's bias gradient."""
    assert isinstance(operation, SumOp)
    if graph.literal(operation.x) is not None or parameter_of(operation.x) is not None:
        return None
    graph.take(operation)
    return Total(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        ints(operation.properties, "dims"),
        len(shape_of(type_of(operation.out))) == len(shape_of(type_of(operation.x))),
        graph.phase_of(operation),
    )


def match_expand(operation: Operation, graph: Graph) -> Kernel | None:
    """Every repetition of values that are not weights."""
    assert isinstance(operation, ExpandOp)
    if graph.literal(operation.x) is not None or parameter_of(operation.x) is not None:
        return None
    graph.take(operation)
    return Expand(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        graph.phase_of(operation),
    )


def match_loss(operation: Operation, graph: Graph) -> Kernel | None:
    """The mark of a loss that no loss function's kernel has taken in."""
    assert isinstance(operation, LossOp)
    if graph.literal(operation.value) is not None:
        return None
    graph.take(operation)
    return LossOfRows(graph.layer_of(operation), graph.array(operation.value), LOSS)


def _operand(value: SSAValue, graph: Graph) -> Array | str:
    text = graph.literal(value)
    if text is None:
        return graph.array(value)
    return text if is_float(type_of(value)) else repr(int(float(text)))


MATCHERS: dict[str, Matcher] = {
    **{op.name: match for op in CALLS},
    SumOp.name: match_sum,
    ExpandOp.name: match_expand,
    LossOp.name: match_loss,
}
