"""Padding kernels: values with padding replaced, and labels counted on the wafer."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.loss import NllLossBackwardOp, NllLossForwardOp
from csrun.cirh.ops.padding import LabelCountOp, MaskPaddingOp
from csrun.cirh.ops.vocab_shards import LogSumExpPartOp, NllLossOfSumsOp, NllLossPartBackwardOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase, UnaryKernel

#: Operators that ignore labels that do not count.
OfLabels = (
    NllLossForwardOp | NllLossBackwardOp | NllLossOfSumsOp | NllLossPartBackwardOp | LabelCountOp
)


@dataclass(frozen=True)
class MaskPadding(Kernel):
    """out = x, with `value` in the padding rows on axis `dim`; a sample has `rows` of them.

    Shapes: x and out have the same shape; x may be the text of a number
    """

    x: Array | str
    out: Array
    dim: int
    rows: int
    value: float
    phase: Phase

    kind = "mask_padding"

    @property
    def reads(self) -> tuple[Array, ...]:
        return () if isinstance(self.x, str) else (self.x,)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    def emit(self, name: Name) -> list[str]:
        """Return a copy, if x has other readers, then the value in the rows after the valid
        samples.
        """
        out, before = name(self.out), ":, " * self.dim
        value = repr(self.value if "float" in self.out.dtype else int(self.value))
        x = self.x if isinstance(self.x, str) else name(self.x)
        return [
            *([] if self.x == self.out else [f"copyto({out}, {x})"]),
            f"{out}[{before}{first_of_padding(self.rows)}:] = {value}",
        ]


@dataclass(frozen=True)
class LabelCount(UnaryKernel):
    """out = number of labels, without padding, that are not `ignore_index`.

    Shapes: x [...] integers, out []
    """

    padding: int | None
    ignore_index: int

    kind = "label_count"

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return the mask of the labels that count."""
        return (Array(f"{self.out.name}/counted", self.x.shape, "bool"),)

    def emit(self, name: Name) -> list[str]:
        """Return a comparison and a sum."""
        counted = name(self.scratch[0])
        lines = [f"not_equal({name(self.x)}, {self.ignore_index}, out={counted})"]
        if self.padding is not None:
            lines.append(f"{counted}[{first_of_padding(self.padding)}:] = False")
        return [*lines, f"{name(self.out)}[...] = np.count_nonzero({counted})"]


def first_of_padding(rows: int) -> str:
    """Return the text of the first padding row, with this many rows per sample."""
    return "step.valid" if rows == 1 else f"step.valid * {rows}"


def labels_of(op: OfLabels | LogSumExpPartOp, graph: Graph) -> tuple[Array, int | None]:
    """Return an operator's labels as they are in the batch, and rows per sample if padding is
    ignored.

    The kernel ignores padding itself, so the labels are not rewritten.
    """
    mask = op.labels.owner
    if isinstance(mask, MaskPaddingOp) and is_of_labels(mask):
        return graph.array(mask.x), mask.rows.value.data
    return graph.array(op.labels), None


def is_of_labels(mask: MaskPaddingOp) -> bool:
    """Return whether the operator only makes its readers ignore labels."""
    readers = [use.operation for use in mask.out.uses]
    return mask.dim.value.data == 0 and all(
        isinstance(op, LogSumExpPartOp)  # it computes from rows regardless of their labels
        or (isinstance(op, OfLabels) and op.ignore_index.value.data == mask.value.value.data)
        for op in readers
    )


def match_mask(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, MaskPaddingOp)
    graph.take(operation)
    if is_of_labels(operation):
        return None
    text = graph.number(operation.x)
    return MaskPadding(
        graph.layer_of(operation),
        graph.array(operation.x) if text is None else text,
        graph.array(operation.out),
        operation.dim.value.data,
        operation.rows.value.data,
        operation.value.value.data,
        graph.phase_of(operation),
    )


def match_count(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, LabelCountOp)
    graph.take(operation)
    labels, padding = labels_of(operation, graph)
    return LabelCount(
        graph.layer_of(operation),
        labels,
        graph.array(operation.out),
        padding,
        operation.ignore_index.value.data,
    )


MATCHERS: dict[str, Matcher] = {MaskPaddingOp.name: match_mask, LabelCountOp.name: match_count}
