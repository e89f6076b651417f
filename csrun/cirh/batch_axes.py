"""Which axis of a value carries samples, and what its value is over the minibatches of a step.

An axis that carries samples has one row or several of each, those of the first sample first: after
[B, T, D] -> [B T, D] a sample has T rows of axis 0. A rule for each operator says what becomes of
it; an operator without a rule makes a value of the batch as a whole.

The rows that fill up an incomplete batch are to count nowhere: what sums over samples must know
that they hold zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import prod

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import (
    arithmetic,
    attention,
    batch,
    embedding,
    loss,
    model,
    normalization,
    parts,
    random,
    rotary,
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
    padding: what the rows of padding hold, where that is known. counts_padding: whether they had
    a part in it.
    """

    over: Over
    axis: int | None = None
    rows: int = 1
    padding: float | None = None
    counts_padding: bool = False

    def on(self, axis: int | None, rows: int | None = None) -> "Dependence":
        """The same value with its samples on another axis; of the whole batch when on none."""
        if axis is None:
            return LOST
        return replace(self, axis=axis, rows=self.rows if rows is None else rows)

    @property
    def is_zero_in_padding(self) -> bool:
        """Whether rows of padding are known to hold zeros."""
        return self.axis is not None and self.padding == 0


FIXED = Dependence(SAME)
OF_THE_BATCH = Dependence(MIXED)
LOST = Dependence(MIXED, counts_padding=True)  # which rows are whose, nobody knows any more

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
    each = found if isinstance(found, tuple) else (found,) * len(op.results)
    if any(one.counts_padding for one in of):
        each = tuple(replace(one, counts_padding=True) for one in each)
    return each


def _dependence_of(op: Operation, of: Sequence[Dependence]) -> Found:
    if op.operands and all(one.over is SAME for one in of) and type(op) is not batch.MaskPaddingOp:
        return FIXED
    if rule := RULES.get(type(op)):
        return rule(op, of)
    if isinstance(op, UnaryOp | BackwardOp | arithmetic.BinaryOp):
        return elementwise(op, of)
    return OF_THE_BATCH if all(one.axis is None for one in of) else LOST


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
                return LOST
            found.add((axis, one.rows))
    if not found:
        return Dependence(PART) if _is_linear(op, of) else OF_THE_BATCH
    if len(found) > 1:
        return LOST
    ((axis, rows),) = found
    alone = all(
        one.over is SAMPLES or (one.over is SAME and _is_alike(value, axis - len(out)))
        for value, one in zip(op.operands, of, strict=True)
    )
    padding = 0 if _is_zero_in_padding(op, of) else None
    return Dependence(SAMPLES if alone else MIXED, axis, rows, padding)


def _is_zero_in_padding(op: Operation, of: Sequence[Dependence]) -> bool:
    """Whether zeros in padding go in and zeros come out; the other operands are finite there."""
    zero = [one.is_zero_in_padding for one in of]
    match op:
        case arithmetic.MulOp() | arithmetic.MatmulOp():
            return any(zero)
        case arithmetic.AddOp() | arithmetic.SubOp() | arithmetic.NegOp():
            return all(zero)
        case shape.CloneOp() | arithmetic.ToCopyOp():
            return zero[0]
        case arithmetic.DivOp() | BackwardOp() | random.MaskedScaleOp():
            return zero[0]
        case _:
            return False


def _is_linear(op: Operation, of: Sequence[Dependence]) -> bool:
    """Whether parts go in and a part comes out."""
    over = [one.over for one in of]
    match op:
        case arithmetic.NegOp() | shape.CloneOp() | arithmetic.ToCopyOp():
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
        return LOST
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


def part(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """A slice, or its gradient: of the batch as a whole when it is cut along the samples."""
    (one,) = of
    is_cut = one.axis is not None and one.axis == integer(op.properties, "dim")
    return LOST if is_cut else _linear(one)


def selection(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    if one.axis is None:
        return one
    return LOST if one.axis == dim else one.on(one.axis - (dim < one.axis))


def selection_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    return one if one.axis is None else _linear(one.on(one.axis + (dim <= one.axis)))


def cat(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """All operands alike, and not one behind the other along the samples."""
    if len({(one.over, one.axis, one.rows) for one in of}) > 1:
        return OF_THE_BATCH if all(one.axis is None for one in of) else LOST
    if of[0].axis == integer(op.properties, "dim"):
        return LOST
    return replace(of[0], padding=of[0].padding if len({one.padding for one in of}) == 1 else None)


def _linear(one: Dependence) -> Dependence:
    """Where zeros stay zeros, and other values do not stay."""
    return replace(one, padding=0 if one.padding == 0 else None)


# Reductions, products and losses.


def total(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dims = ints(op.properties, "dims")
    if one.axis is None:
        return one
    if one.axis in dims:
        return _sum_of_samples(one)
    kept = len(shape_of(type_of(op.results[0]))) == len(shape_of(type_of(op.operands[0])))
    axis = one.axis if kept else one.axis - sum(d < one.axis for d in dims)
    return _linear(replace(one, axis=axis))


def _sum_of_samples(*of: Dependence) -> Dependence:
    """A sum of products; a part of it is zero where one factor is."""
    over = PART if all(one.over is SAMPLES for one in of) else MIXED
    return Dependence(over, counts_padding=not any(one.is_zero_in_padding for one in of))


def argmax(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis == dim:
        return LOST
    return replace(one.on(one.axis - (dim < one.axis)), padding=None)


def along_an_axis(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """As elementwise, where `dim` is not the axis of the samples."""
    found = elementwise(op, of)
    return LOST if found.axis == integer(op.properties, "dim") else found


def product(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Rows of the left matrix, columns of the right one; what is summed over is a part."""
    left, right = of
    if (left.axis, right.axis) == (1, 0):
        return _sum_of_samples(left, right) if left.rows == right.rows else LOST
    if left.axis == 0 and right.axis is None:
        return replace(left, over=SAMPLES if (left.over, right.over) == (SAMPLES, SAME) else MIXED)
    if right.axis == 1 and left.axis is None:
        return replace(right, over=SAMPLES if (left.over, right.over) == (SAME, SAMPLES) else MIXED)
    if left.axis is None and right.axis is None and {left.over, right.over} == {PART, SAME}:
        return Dependence(PART)
    return OF_THE_BATCH if left.axis is right.axis is None else LOST


def products(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Over a leading axis each sample by itself, else as a product of two matrices."""
    left, right = of
    ranks = [len(shape_of(type_of(value))) for value in (*op.operands, op.results[0])]
    places = [
        None if one.axis is None else one.axis - rank for one, rank in zip(of, ranks, strict=False)
    ]
    if any(place is not None and place < -2 for place in places):
        return elementwise(op, of) if not {-1, -2} & set(places) else LOST
    if places == [-1, -2] and ranks[2] == 2 and left.rows == right.rows:
        return _sum_of_samples(left, right)
    if places[0] == -2 and right.over is SAME:
        return _linear(left.on(ranks[2] - 2))
    if places[1] == -1 and left.over is SAME:
        return _linear(right.on(ranks[2] - 1))
    return OF_THE_BATCH if left.axis is right.axis is None else LOST


def affine(op: Operation, of: Sequence[Dependence]) -> Dependence:
    bias, *factors = of
    found = product(op, factors)
    if bias.axis is None and found.axis is None:
        return replace(found, over=MIXED)
    if found.axis == 0 and bias.axis is None:
        return replace(found, padding=None, over=found.over if bias.over is SAME else MIXED)
    return LOST


def nll_loss(op: Operation, of: Sequence[Dependence]) -> Dependence:
    x, labels = of
    if x.axis != 0 or (x.axis, x.rows) != (labels.axis, labels.rows):
        return LOST
    over = PART if x.over is labels.over is SAMPLES else MIXED
    return Dependence(over, counts_padding=not _ignores_padding(op, labels))


def _ignores_padding(op: Operation, labels: Dependence) -> bool:
    return labels.padding == integer(op.properties, "ignore_index")


def nll_loss_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    grad, x, labels = of
    if x.axis != 0 or (x.axis, x.rows) != (labels.axis, labels.rows):
        return LOST
    alone = x.over is labels.over is SAMPLES and grad.over is SAME
    padding = 0 if _ignores_padding(op, labels) else None
    return Dependence(SAMPLES if alone else MIXED, x.axis, x.rows, padding)


# What counts, and what does not.


def mask_padding(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The axis is the operator's own: of a gradient that is alike for all it makes theirs."""
    assert isinstance(op, batch.MaskPaddingOp)
    one, _ = of
    over = SAMPLES if one.over in (SAMPLES, SAME) else MIXED
    return Dependence(over, op.dim.value.data, op.rows.value.data, op.value.value.data)


def label_count(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Known of the global batch where the labels are an input's; else counted, in one minibatch."""
    assert isinstance(op, batch.LabelCountOp)
    (labels,) = of
    over = MIXED if source_of_labels(op.labels) is None else SAME
    return Dependence(over, counts_padding=not _ignores_padding(op, labels))


@dataclass(frozen=True)
class LabelSource:
    """The input whose elements labels are, each once, in whatever order, after cuts one by one."""

    input: model.InputOp
    cuts: tuple[shape.SliceOp | shape.SelectOp, ...]


def source_of_labels(labels: SSAValue) -> LabelSource | None:
    """Where labels come from; None when they are no part, the same of all samples, of an input."""
    cuts: list[shape.SliceOp | shape.SelectOp] = []
    while not isinstance(labels.owner, model.InputOp):
        op = labels.owner
        if isinstance(op, shape.SliceOp | shape.SelectOp) and op.dim.value.data > 0:
            cuts.insert(0, op)
        elif cuts or not isinstance(op, _WHOLE):
            return None
        labels = op.x
    return LabelSource(labels.owner, tuple(cuts))


_WHOLE = (
    batch.MaskPaddingOp,
    shape.ViewOp,
    shape.PermuteOp,
    shape.TransposeOp,
    shape.CloneOp,
    arithmetic.ToCopyOp,
)


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
    own = _as_the_gradient(own, of[0])
    return (own, *(_sum_of_samples(own) for _ in op.results[1:]))


def lookup(op: Operation, of: Sequence[Dependence]) -> Dependence:
    weight, indices = of
    return _by_samples(indices, (weight,), len(shape_of(type_of(op.operands[1]))))


def lookup_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    own = _together(of, (), len(shape_of(type_of(op.operands[1]))))
    return _sum_of_samples(_as_the_gradient(own, of[0]))


def attend(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Samples on the first axis of all operands, a mask's included that is not alike in all."""
    is_backward = isinstance(op, attention.AttentionBackwardOp)
    first = 6 if is_backward else 3
    masks = [
        one
        for value, one in zip(op.operands[first:], of[first:], strict=True)
        if one.over is not SAME or not _is_alike(value, -4)
    ]
    if any(len(shape_of(type_of(value))) < 4 for value in op.operands[first:]) and masks:
        return LOST
    found = _together([*of[:first], *masks], (), 1)
    return _as_the_gradient(found, of[0]) if is_backward else found


def turned(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Each sample by itself, where its axis is neither that of positions nor the last one."""
    (one,) = of
    last = len(shape_of(type_of(op.operands[0]))) - 1
    if one.axis in (integer(op.properties, "dim"), last):
        return LOST
    return _linear(one)


def _as_the_gradient(found: Dependence, grad: Dependence) -> Dependence:
    """What is linear in a gradient is zero where that is."""
    return replace(found, padding=0) if grad.is_zero_in_padding else found


def _together(
    samples: Sequence[Dependence], others: Sequence[Dependence], before: int
) -> Dependence:
    """Values that all have their samples on the same axis, one of those before `before`."""
    if len({(one.axis, one.rows) for one in samples}) > 1:
        return LOST
    mixed = any(one.over is not SAMPLES for one in samples)
    found = _by_samples(samples[0], others, before)
    return replace(found, over=MIXED) if mixed else found


def _by_samples(one: Dependence, others: Sequence[Dependence], before: int) -> Dependence:
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis >= before or any(other.axis is not None for other in others):
        return LOST
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
    batch.SampleCountOp: fixed,
    batch.ValidSamplesOp: fixed,
    batch.MaskPaddingOp: mask_padding,
    batch.LabelCountOp: label_count,
    random.DropoutMaskOp: dropout_mask,
    random.MaskedScaleOp: elementwise,
    shape.ViewOp: view,
    shape.ExpandOp: expand,
    shape.PermuteOp: permute,
    shape.TransposeOp: transpose,
    shape.SliceOp: part,
    shape.SelectOp: selection,
    parts.SliceBackwardOp: part,
    parts.SelectBackwardOp: selection_backward,
    parts.CatOp: cat,
    arithmetic.SumOp: total,
    arithmetic.ArgmaxOp: argmax,
    arithmetic.MmOp: product,
    arithmetic.AddmmOp: affine,
    arithmetic.MatmulOp: products,
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
    rotary.RotaryEmbeddingOp: turned,
    loss.LogSoftmaxOp: along_an_axis,
    loss.LogSoftmaxBackwardOp: along_an_axis,
    loss.NllLossForwardOp: nll_loss,
    loss.NllLossBackwardOp: nll_loss_backward,
}
