"""Softmax cross entropy with integer labels, forward and backward, fused.

Source: log-sum-exp with the row's maximum taken out, as in any text; own choice of calls: rows are
summed by a product with ones, and their maxima taken of the transpose, both of which are faster
than NumPy's reductions along a short last axis
"""

from dataclasses import dataclass
from functools import cached_property

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.elementwise import DivOp
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
)
from csrun.cirh.ops.model import FullOp, LossOp, RowsOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase

LOSS = Array("loss", (1,), "float64")


@dataclass(frozen=True)
class Parts:
    """The arrays that forward leaves for backward.

    Shapes: logits [B, C], labels [B] -> exponentials [B, C], totals [B, 1], valid [B] bool
    """

    logits: Array
    labels: Array
    layer: str

    @cached_property
    def exponentials(self) -> Array:
        """exp(logits - row maximum)."""
        return Array(f"{self.layer}/exponentials", self.logits.shape, self.logits.dtype)

    @cached_property
    def totals(self) -> Array:
        """Sums of the exponentials of each row."""
        return Array(f"{self.layer}/totals", (self.logits.shape[0], 1), self.logits.dtype)

    @cached_property
    def valid(self) -> Array:
        """Rows that are not padding."""
        return Array(f"{self.layer}/valid", self.logits.shape[:1], "bool")


@dataclass(frozen=True)
class CrossEntropyForward(Kernel):
    """loss = sum over valid rows of log(sum(exp(logits))) - logits[label].

    Shapes: logits [B, C], labels [B] -> loss float64[1]
    """

    parts: Parts

    kind = "softmax_cross_entropy"

    @property
    def reads(self) -> tuple[Array, ...]:
        """Logits and labels."""
        return self.parts.logits, self.parts.labels

    @property
    def writes(self) -> tuple[Array, ...]:
        """The loss, and what backward needs."""
        return LOSS, self.parts.exponentials, self.parts.totals, self.parts.valid

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Shifted and transposed logits, row maxima and losses, the labels' places and logits."""
        logits, layer = self.parts.logits, self.layer
        rows = logits.shape[:1]
        return (
            Array(f"{layer}/shifted", logits.shape, logits.dtype),
            Array(f"{layer}/transposed", logits.shape[::-1], logits.dtype),
            Array(f"{layer}/tops", (*rows, 1), logits.dtype),
            Array(f"{layer}/row_losses", rows, logits.dtype),
            Array(f"{layer}/places", rows, "int64"),
            Array(f"{layer}/picked", rows, logits.dtype),
        )

    @property
    def flops(self) -> int:
        """Maximum, subtraction, exponential, sum: four for each logit."""
        rows, columns = self.parts.logits.shape
        return 4 * rows * columns

    def prepare(self, name: Name) -> list[str]:
        """Flat views, the start of each row, and ones."""
        rows, columns = self.parts.logits.shape
        dtype = self.parts.logits.dtype
        totals, shifted, tops = (
            name(a) for a in (self.parts.totals, self.scratch[0], self.scratch[2])
        )
        return [
            f"{totals}_flat = {totals}.reshape(-1)",
            f"{shifted}_flat = {shifted}.reshape(-1)",
            f"{tops}_flat = {tops}.reshape(-1)",
            f"row_starts_{rows}_{columns} = np.arange(0, {rows * columns}, {columns})",
            f"ones_{columns}_1 = np.ones(({columns}, 1), '{dtype}')",
        ]

    def emit(self, name: Name) -> list[str]:
        """Twelve calls on [B, C] and [B]."""
        parts = self.parts
        rows, columns = parts.logits.shape
        shifted, transposed, tops, losses, places, picked = (name(a) for a in self.scratch)
        logits, labels = name(parts.logits), name(parts.labels)
        exponentials, totals, valid = (
            name(a) for a in (parts.exponentials, parts.totals, parts.valid)
        )
        return [
            f"copyto({transposed}, {logits}.T)",
            f"maximum_reduce({transposed}, axis=0, out={tops}_flat)",
            f"subtract({logits}, {tops}, out={shifted})",
            f"exp({shifted}, out={exponentials})",
            f"matmul({exponentials}, ones_{columns}_1, out={totals})",
            f"log({totals}_flat, out={losses})",
            f"add(row_starts_{rows}_{columns}, {labels}, out={places})",
            f'{shifted}_flat.take({places}, out={picked}, mode="clip")',
            f"subtract({losses}, {picked}, out={losses})",
            f"greater_equal({labels}, 0, out={valid})",
            f"multiply({losses}, {valid}, out={losses})",
            f"{name(LOSS)}[0] = add_reduce({losses})",
        ]


@dataclass(frozen=True)
class CrossEntropyBackward(Kernel):
    """gradient = (softmax(logits) - one_hot(labels)) / rows, zero in padding rows.

    Shapes: exponentials [B, C], totals [B, 1], labels [B] -> gradient [B, C]
    """

    parts: Parts
    gradient: Array

    kind = "softmax_cross_entropy"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        """What forward left, and the labels."""
        parts = self.parts
        return parts.exponentials, parts.totals, parts.valid, parts.labels

    @property
    def writes(self) -> tuple[Array, ...]:
        """The gradient of the logits."""
        return (self.gradient,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """One-hot labels, and each row's factor."""
        gradient = self.gradient
        return (
            Array(f"{self.layer}/hot", gradient.shape, "bool"),
            Array(f"{self.layer}/factors", (gradient.shape[0], 1), gradient.dtype),
        )

    @property
    def flops(self) -> int:
        """Division, subtraction, multiplication."""
        rows, columns = self.gradient.shape
        return 3 * rows * columns

    def prepare(self, name: Name) -> list[str]:
        """The class of each column, and a flat view of the factors."""
        columns, factors = self.gradient.shape[1], name(self.scratch[1])
        return [
            f"columns_{columns} = np.arange({columns})",
            f"{factors}_flat = {factors}.reshape(-1)",
        ]

    def emit(self, name: Name) -> list[str]:
        """Five calls on [B, C] and [B]."""
        parts, gradient = self.parts, name(self.gradient)
        hot, factors = (name(array) for array in self.scratch)
        labels = name(parts.labels)
        return [
            f"divide({name(parts.exponentials)}, {name(parts.totals)}, out={gradient})",
            f"equal({labels}[:, None], columns_{self.gradient.shape[1]}, out={hot})",
            f"subtract({gradient}, {hot}, out={gradient})",
            f"divide({name(parts.valid)}, step.rows, out={factors}_flat)",
            f"multiply({gradient}, {factors}, out={gradient})",
        ]


def match_forward(operation: Operation, graph: Graph) -> Kernel | None:
    """log_softmax, nll_loss_forward, and the division by rows that makes it the loss."""
    assert isinstance(operation, LogSoftmaxOp)
    loss = [op for op in graph.users(operation.out) if isinstance(op, NllLossForwardOp)]
    others = [op for op in graph.users(operation.out) if not isinstance(op, _USES)]
    if len(loss) != 1 or others or operation.dim.value.data != 1:
        return None
    mean = graph.only_user(loss[0].out)
    if not (isinstance(mean, DivOp) and isinstance(mean.rhs.owner, RowsOp)):
        return None
    marks = [op for op in graph.users(mean.out) if isinstance(op, LossOp)]
    if not marks or len(marks) != len(graph.users(mean.out)):
        return None
    graph.take(operation, loss[0], mean, *marks)
    return CrossEntropyForward(graph.layer_of(operation), _parts(operation, loss[0], graph))


def match_backward(operation: Operation, graph: Graph) -> Kernel | None:
    """The gradient 1 / rows of the mean, through nll_loss_backward and log_softmax's backward."""
    assert isinstance(operation, NllLossBackwardOp)
    scaled = operation.grad.owner
    through = graph.only_user(operation.out)
    forward = operation.x.owner
    if not (
        isinstance(scaled, DivOp)
        and _is_one(scaled.lhs)
        and isinstance(scaled.rhs.owner, RowsOp)
        and isinstance(through, LogSoftmaxBackwardOp)
        and isinstance(forward, LogSoftmaxOp)
    ):
        return None
    graph.take(operation, scaled, through)
    parts = _parts(forward, operation, graph)
    return CrossEntropyBackward(parts.layer, parts, graph.array(through.out))


_USES = (NllLossForwardOp, NllLossBackwardOp, LogSoftmaxBackwardOp)


def _parts(
    forward: LogSoftmaxOp, loss: NllLossForwardOp | NllLossBackwardOp, graph: Graph
) -> Parts:
    return Parts(graph.array(forward.x), graph.array(loss.labels), graph.layer_of(forward))


def _is_one(value: SSAValue) -> bool:
    return isinstance(value.owner, FullOp) and value.owner.value.value.data == 1.0


MATCHERS: dict[str, Matcher] = {
    LogSoftmaxOp.name: match_forward,
    NllLossBackwardOp.name: match_backward,
}
