"""Which axis of a value carries samples, and what its value is over the minibatches of a step.

An axis that carries samples has one row or several of each, those of the first sample first: after
[B, T, D] -> [B T, D] a sample has T rows of axis 0. A rule for each operator says what becomes of
it; an operator without a rule makes a value of the batch as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import prod

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import (
    arithmetic,
    attention,
    embedding,
    loss,
    model,
    normalization,
    random,
    shape,
)
from csrun.cirh.ops.base import BackwardOp, UnaryOp, integer, ints
from csrun.cirh.types import shape_of, type_of


class Over(Enum):
    """A value over the minibatches of a step."""

    SAMPLES = auto()  # each sample's rows are of that sample alone
    SAME = auto()  # it is the same in all of them
    PART = auto()  # a sum over samples: theirs add up
    MIXED = auto()  # none of these: of the batch as a whole


SAMPLES, SAME, PART, MIXED = Over


@dataclass(frozen=True)
class Dependence:
    """How a value depends on the batch.

    axis: the one that carries samples, None when none does. rows: that a sample has of it.
    """

    over: Over
    axis: int | None = None
    rows: int = 1

    def on(self, axis: int | None, rows: int | None = None) -> "Dependence":
        """The same value with its samples on another axis; of the whole batch when on none."""
        if axis is None:
            return OF_THE_BATCH
        return replace(self, axis=axis, rows=self.rows if rows is None else rows)


FIXED = Dependence(SAME)
OF_THE_BATCH = Dependence(MIXED)

Dependences = dict[SSAValue, Dependence]
Found = Dependence | tuple[Dependence, ...]  # of all results, or of each
Rule = Callable[[Operation, Sequence[Dependence]], Found]


def dependences_of(operations: Sequence[Operation]) -> Dependences:
    """The dependence of every value, from the operators in program order."""
    found: Dependences = {}
    for op in operations:
        of = [found[operand] for operand in op.operands]
        found.update(zip(op.results, dependence_of(op, of), strict=True))
    return found


def dependence_of(op: Operation, of: Sequence[Dependence]) -> tuple[Dependence, ...]:
    """The dependence of each result of an operator, from those of its operands."""
    found = _dependence_of(op, of)
    return found if isinstance(found, tuple) else (found,) * len(op.results)


def _dependence_of(op: Operation, of: Sequence[Dependence]) -> Found:
    if op.operands and all(one.over is SAME for one in of):
        return FIXED
    if rule := RULES.get(type(op)):
        return rule(op, of)
    if isinstance(op, UnaryOp | BackwardOp | arithmetic.BinaryOp):
        return elementwise(op, of)
    return OF_THE_BATCH


# Elementwise operators.


def elementwise(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Operands broadcast; those with samples must have them on the same axis of the result."""
    out = shape_of(type_of(op.results[0]))
    found: set[tuple[int, int]] = set()
    for value, one in zip(op.operands, of, strict=True):
        if one.axis is not None:
            own = shape_of(type_of(value))
            axis = one.axis + len(out) - len(own)
            if own[one.axis] != out[axis]:
                return OF_THE_BATCH
            found.add((axis, one.rows))
    if len(found) != 1:
        return Dependence(PART) if not found and _is_linear(op, of) else OF_THE_BATCH
    ((axis, rows),) = found
    alone = all(
        one.over is SAMPLES or (one.over is SAME and _is_alike(value, axis - len(out)))
        for value, one in zip(op.operands, of, strict=True)
    )
    return Dependence(SAMPLES if alone else MIXED, axis, rows)


def _is_linear(op: Operation, of: Sequence[Dependence]) -> bool:
    """Whether parts go in and a part comes out."""
    over = [one.over for one in of]
    match op:
        case arithmetic.NegOp():
            return over == [PART]
        case arithmetic.AddOp() | arithmetic.SubOp():
            return over == [PART, PART]
        case arithmetic.MulOp():
            return over in ([PART, SAME], [SAME, PART])
        case arithmetic.DivOp():
            return over == [PART, SAME]
        case _:
            return False


def _is_alike(value: SSAValue, axis: int) -> bool:
    """Whether a value is the same all along an axis, counted from the last one: -1, -2, …"""
    own = shape_of(type_of(value))
    if -axis > len(own) or own[axis] == 1 or isinstance(value.owner, model.FullOp):
        return True
    return isinstance(value.owner, shape.ExpandOp) and _is_alike(value.owner.x, axis)


# Shapes.


def view(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The first axis of which each sample has equally many rows, behind as many rows as before."""
    (one,) = of
    if one.axis is None:
        return one
    old, new = shape_of(type_of(op.operands[0])), shape_of(type_of(op.results[0]))
    samples, before = old[one.axis] // one.rows, prod(old[: one.axis])
    fitting = [
        axis
        for axis, size in enumerate(new)
        if prod(new[:axis]) == before and samples and size and size % samples == 0
    ]
    if not fitting:
        return OF_THE_BATCH
    axis = one.axis if one.axis in fitting else fitting[0]  # of one sample any would do
    return one.on(axis, new[axis] // samples)


def expand(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    if one.axis is None:
        return Dependence(one.over)
    old, new = shape_of(type_of(op.operands[0])), shape_of(type_of(op.results[0]))
    axis = one.axis + len(new) - len(old)
    return one.on(axis if old[one.axis] == new[axis] else None)


def permute(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    return one if one.axis is None else one.on(ints(op.properties, "dims").index(one.axis))


def transpose(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    return one if one.axis is None else one.on(1 - one.axis)


# Reductions, products and losses.


def total(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dims = ints(op.properties, "dims")
    if one.axis is None:
        return one
    if one.axis in dims:
        return Dependence(PART if one.over is SAMPLES else MIXED)
    kept = len(shape_of(type_of(op.results[0]))) == len(shape_of(type_of(op.operands[0])))
    return one if kept else one.on(one.axis - sum(d < one.axis for d in dims))


def argmax(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    if one.axis is None or one.axis == dim:
        return OF_THE_BATCH
    return one.on(one.axis - (dim < one.axis))


def along_an_axis(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """As elementwise, where `dim` is not the axis of the samples."""
    found = elementwise(op, of)
    return OF_THE_BATCH if found.axis == integer(op.properties, "dim") else found


def product(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Rows of the left matrix, columns of the right one; what is summed over is a part."""
    left, right = of
    if (left.axis, right.axis) == (1, 0):
        return Dependence(PART if left.over is right.over is SAMPLES else MIXED)
    if left.axis == 0 and right.axis is None:
        return replace(left, over=SAMPLES if (left.over, right.over) == (SAMPLES, SAME) else MIXED)
    if right.axis == 1 and left.axis is None:
        return replace(right, over=SAMPLES if (left.over, right.over) == (SAME, SAMPLES) else MIXED)
    if left.axis is None and right.axis is None and {left.over, right.over} == {PART, SAME}:
        return Dependence(PART)
    return OF_THE_BATCH


def affine(op: Operation, of: Sequence[Dependence]) -> Dependence:
    bias, *factors = of
    found = product(op, factors)
    if found.axis == 0 and bias.axis is None:
        return found if bias.over is SAME else replace(found, over=MIXED)
    return OF_THE_BATCH


def nll_loss(op: Operation, of: Sequence[Dependence]) -> Dependence:
    x, labels = of
    if x.axis != 0 or (x.axis, x.rows) != (labels.axis, labels.rows):
        return OF_THE_BATCH
    return Dependence(PART if x.over is labels.over is SAMPLES else MIXED)


def nll_loss_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    grad, x, labels = of
    if x.axis != 0 or (x.axis, x.rows) != (labels.axis, labels.rows):
        return OF_THE_BATCH
    alone = x.over is labels.over is SAMPLES and grad.over is SAME
    return Dependence(SAMPLES if alone else MIXED, x.axis, x.rows)


# Normalizations, tables, attention.


def normalized(op: Operation, of: Sequence[Dependence]) -> Found:
    """Each run of values is normalized by itself; the samples are on an axis before them."""
    x, *weights = of
    axes = len(shape_of(type_of(op.operands[1])))
    return _by_samples(x, weights, len(shape_of(type_of(op.operands[0]))) - axes)


def normalized_backward(op: Operation, of: Sequence[Dependence]) -> Found:
    """The operand's gradient by samples, those of the weights summed over them."""
    *samples, weight = of
    axes = len(shape_of(type_of(op.operands[-1])))
    own = _together(samples, (weight,), len(shape_of(type_of(op.operands[0]))) - axes)
    part = Dependence(PART) if own.over is SAMPLES else OF_THE_BATCH
    return (own, *(part for _ in op.results[1:]))


def lookup(op: Operation, of: Sequence[Dependence]) -> Dependence:
    weight, indices = of
    return _by_samples(indices, (weight,), len(shape_of(type_of(op.operands[1]))))


def lookup_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    own = _together(of, (), len(shape_of(type_of(op.operands[1]))))
    return Dependence(PART) if own.over is SAMPLES else OF_THE_BATCH


def attend(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Samples on the first axis of all operands, a mask's included that is not alike in all."""
    first = 6 if isinstance(op, attention.AttentionBackwardOp) else 3
    masks = [
        one
        for value, one in zip(op.operands[first:], of[first:], strict=True)
        if one.over is not SAME or not _is_alike(value, -4)
    ]
    if any(len(shape_of(type_of(value))) < 4 for value in op.operands[first:]) and masks:
        return OF_THE_BATCH
    return _together([*of[:first], *masks], (), 1)


def _together(
    samples: Sequence[Dependence], others: Sequence[Dependence], before: int
) -> Dependence:
    """Values that all have their samples on the same axis, one of those before `before`."""
    if len({(one.axis, one.rows) for one in samples}) > 1:
        return OF_THE_BATCH
    mixed = any(one.over is not SAMPLES for one in samples)
    found = _by_samples(samples[0], others, before)
    return replace(found, over=MIXED) if mixed else found


def _by_samples(one: Dependence, others: Sequence[Dependence], before: int) -> Dependence:
    if one.axis is None or one.axis >= before:
        return OF_THE_BATCH
    alone = one.over is SAMPLES and all(other.over is SAME for other in others)
    return Dependence(SAMPLES if alone else MIXED, one.axis, one.rows)


# What has no operands.


def of_samples(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return Dependence(SAMPLES, 0)


def fixed(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return FIXED


def dropout_mask(op: Operation, of: Sequence[Dependence]) -> Dependence:
    assert isinstance(op, random.DropoutMaskOp)
    return Dependence(SAMPLES, 0, op.rows_per_sample) if op.rows_per_sample else FIXED


RULES: Mapping[type[Operation], Rule] = {
    model.InputOp: of_samples,
    model.ParameterOp: fixed,
    model.FullOp: fixed,
    model.RowsOp: fixed,
    random.DropoutMaskOp: dropout_mask,
    random.MaskedScaleOp: elementwise,
    shape.ViewOp: view,
    shape.ExpandOp: expand,
    shape.PermuteOp: permute,
    shape.TransposeOp: transpose,
    arithmetic.SumOp: total,
    arithmetic.ArgmaxOp: argmax,
    arithmetic.MmOp: product,
    arithmetic.AddmmOp: affine,
    normalization.SoftmaxOp: along_an_axis,
    normalization.SoftmaxBackwardOp: along_an_axis,
    normalization.NativeLayerNormOp: normalized,
    normalization.NativeLayerNormBackwardOp: normalized_backward,
    normalization.FusedRmsNormOp: normalized,
    normalization.FusedRmsNormBackwardOp: normalized_backward,
    embedding.EmbeddingOp: lookup,
    embedding.EmbeddingDenseBackwardOp: lookup_backward,
    attention.AttentionOp: attend,
    attention.AttentionBackwardOp: attend,
    loss.LogSoftmaxOp: along_an_axis,
    loss.LogSoftmaxBackwardOp: along_an_axis,
    loss.NllLossForwardOp: nll_loss,
    loss.NllLossBackwardOp: nll_loss_backward,
}
