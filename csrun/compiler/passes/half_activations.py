"""Activations that the backward pass reads are kept as words of 16 bits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh import storage_of
from csrun.cirh.ops.half import NarrowHalfOp, RoundHalfOp, WidenHalfOp
from csrun.cirh.ops.model import LossOp
from csrun.cirh.ops.shape import VIEWS
from csrun.compiler.passes.rewrite import Done, Pass


@dataclass(frozen=True)
class _LateRead:
    """An operand of a backward operator: a rounded value under these views."""

    reader: Operation
    index: int
    views: tuple[Operation, ...]


@dataclass(frozen=True)
class HalfActivations(Pass):
    """Before: any valid module. After: no backward operator reads what `round_half` gave in the
    forward pass: that is narrowed to words there, and widened beside the backward operators of each
    layer, which read it so. Neither changes a number.
    """

    name: ClassVar[str] = "halves"

    def apply(self, module: ModuleOp) -> Done:
        """Insert the conversions, and count the activations."""
        operations = list(module.ops)
        places = {op: place for place, op in enumerate(operations)}
        loss = next((op for op in operations if isinstance(op, LossOp)), None)
        if loss is None or storage_of(module) is None:
            return Done(False)
        count = 0
        for op in operations[: places[loss]]:
            if isinstance(op, RoundHalfOp):
                reads = sorted(_late(op.out, places, places[loss]), key=lambda r: places[r.reader])
                if reads:
                    _keep(op, reads)
                    count += 1
        return Done(count > 0, (f"{count} activations are kept in 16 bits",))


def _late(
    value: SSAValue, places: dict[Operation, int], loss: int, views: tuple[Operation, ...] = ()
) -> Iterator[_LateRead]:
    """Reads after the loss, of a value or of a view of it."""
    for use in list(value.uses):
        if places[use.operation] > loss:
            yield _LateRead(use.operation, use.index, views)
        elif isinstance(use.operation, VIEWS):
            yield from _late(use.operation.out, places, loss, (*views, use.operation))


def _keep(rounded: RoundHalfOp, reads: Sequence[_LateRead]) -> None:
    options = {"mantissa_bits": rounded.mantissa_bits, "bias": rounded.bias}
    scope = rounded.properties.get("scope")
    words = NarrowHalfOp.of([rounded.out], **options, **({} if scope is None else {"scope": scope}))
    words.location = rounded.location
    Rewriter.insert_op(words, InsertPoint.after(rounded))
    widened: dict[object, WidenHalfOp] = {}
    for read in reads:
        scope = read.reader.properties.get("scope")
        if scope not in widened:
            own = {} if scope is None else {"scope": scope}
            made = WidenHalfOp.of([words.out], **options, **own)
            made.location = read.reader.location
            Rewriter.insert_op(made, InsertPoint.before(read.reader))
            widened[scope] = made
        value: SSAValue = widened[scope].out
        for view in read.views:
            again = view.clone({view.operands[0]: value})
            Rewriter.insert_op(again, InsertPoint.before(read.reader))
            value = again.results[0]
        read.reader.operands[read.index] = value
