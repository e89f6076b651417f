"""Terms of a loss that are means over different labels.

The loss of a batch is their sum. Over the batches of an evaluation, each term is averaged over its
own labels, since a batch with many labels of one kind may have few of another.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.compiler.graph.labels import Ranges, label_ranges, place_of_count
from csrun.nn.tensor import Tensor
from csrun.runtime.step.results import HostCall, Mean

Outputs = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class LossParts:
    """Terms of a loss as outputs of the program, and the host call that averages them."""

    outputs: Outputs
    means: HostCall


@dataclass(frozen=True)
class LossTerm:
    """Term of a loss, and the number of labels it is a mean over; None for samples."""

    value: Tensor
    count: Tensor | None


def loss_parts(loss: Tensor) -> LossParts | None:
    """Return the terms of a loss; None for a mean over one kind of labels, or over samples."""
    parts = _terms_of(loss)
    if len(parts) < 2:
        return None
    outputs: Outputs = []
    for number, part in enumerate(parts):
        outputs.append((f"loss_{number}", part.value))
        if part.count is not None:
            outputs.append((f"loss_{number}_count", part.count))
    counted = [part.count is not None for part in parts]

    def means(*values: Any) -> dict[str, Any]:
        left = iter(values)
        return {str(n): _mean(left) if of else float(next(left)) for n, of in enumerate(counted)}

    return LossParts(outputs, HostCall(means, tuple(name for name, _ in outputs)))


def _mean(values: Iterator[Any]) -> Mean:
    value, count = float(next(values)), float(next(values))
    return Mean(value * count if count else 0.0, count)


def _terms_of(loss: Tensor) -> list[LossTerm]:
    """Group the addends of a loss by their labels."""
    ranges = label_ranges(list(loss.tracer.module.walk()))
    addends: dict[frozenset[Hashable], list[Tensor]] = defaultdict(list)
    counts: dict[frozenset[Hashable], list[LabelCountOp]] = {}
    for addend in _addends(loss):
        found = _counts(addend.value)
        kind = frozenset(_kind(op, ranges) for op in found)
        addends[kind].append(addend)
        counts[kind] = found
    return [
        # An addend with several kinds of labels counts as a mean over samples.
        LossTerm(
            reduce(add, values),
            Tensor(loss.tracer, counts[kind][0].out) if len(kind) == 1 else None,
        )
        for kind, values in addends.items()
    ]


def _kind(op: LabelCountOp, ranges: Ranges) -> Hashable:
    """Key of a label count: equal for equal labels, unique if no streamer counts them."""
    place = place_of_count(op, ranges)
    return op if place is None else place


def _counts(value: SSAValue) -> list[LabelCountOp]:
    """Return all label counts that a value depends on."""
    pending, seen = [value.owner], {value.owner}
    while pending:
        owner = pending.pop()
        assert isinstance(owner, Operation), "CIRH has no block arguments"
        before = {operand.owner for operand in owner.operands} - seen
        seen |= before
        pending += before
    return [op for op in seen if isinstance(op, LabelCountOp)]


def _addends(x: Tensor) -> list[Tensor]:
    """Split a scalar into its addends, constant factors multiplied in."""

    def of(value: SSAValue) -> list[Tensor]:
        return _addends(Tensor(x.tracer, value))

    match op := x.value.owner:
        case AddOp():
            return [*of(op.lhs), *of(op.rhs)]
        case SubOp():
            return [*of(op.lhs), *(-part for part in of(op.rhs))]
        case NegOp():
            return [-part for part in of(op.x)]
        case MulOp() if _is_constant(op.rhs):
            return [part * Tensor(x.tracer, op.rhs) for part in of(op.lhs)]
        case MulOp() if _is_constant(op.lhs):
            return [Tensor(x.tracer, op.lhs) * part for part in of(op.rhs)]
        case DivOp() if _is_constant(op.rhs):
            return [part / Tensor(x.tracer, op.rhs) for part in of(op.lhs)]
        case _:
            return [x]


def _is_constant(value: SSAValue) -> bool:
    return isinstance(value.owner, FullOp)
