"""Dependence of a value on the batch, and helpers of the rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.base import ElementwiseOp
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.products import AddmmOp, MmOp
from csrun.cirh.ops.shape import ExpandOp, ViewOp
from csrun.cirh.types import shape_of, type_of


class BatchRelation(Enum):
    """Relation of a value of the batch to those of its minibatches."""

    SAMPLES = auto()  # per sample: each sample's rows depend on that sample alone
    SAME = auto()  # equal in all minibatches
    PART = auto()  # a sum over samples: the minibatches' values add up
    MIXED = auto()  # none of these: of the batch as a whole


SAMPLES, SAME, PART, MIXED = BatchRelation


@dataclass(frozen=True)
class Dependence:
    """Dependence of a value on the batch.

    axis: axis that carries samples, None if none does.
    rows: consecutive rows per sample on it.
    outer: how many times all samples are repeated on it, e.g. T times for [T B, D] from [T, B, D].
    padding: content of padding rows, if known.
    counts_padding: whether padding affects the value.
    """

    over: BatchRelation
    axis: int | None = None
    rows: int = 1
    padding: float | None = None
    counts_padding: bool = False
    outer: int = 1

    def on(self, axis: int | None) -> "Dependence":
        """Return the same value with its samples on another axis; of the whole batch if on none."""
        return LOST if axis is None else replace(self, axis=axis)

    def at(self, sample_axis: "SampleAxis") -> "Dependence":
        """Return the same value with its samples along another axis."""
        return replace(self, axis=sample_axis.axis, outer=sample_axis.outer, rows=sample_axis.rows)

    @property
    def sample_axis(self) -> "SampleAxis":
        """Axis and stride of the samples."""
        return SampleAxis(self.axis, self.outer, self.rows)

    @property
    def is_zero_in_padding(self) -> bool:
        """Return whether padding rows are known to be zero."""
        return self.axis is not None and self.padding == 0


@dataclass(frozen=True)
class SampleAxis:
    """An axis of `outer` times all samples with `rows` rows each."""

    axis: int | None
    outer: int = 1
    rows: int = 1

    @property
    def count(self) -> int:
        """Number of rows of the axis per sample."""
        return self.outer * self.rows

    def split_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape with all samples, once, on a separate axis, the one after `axis`."""
        if self.axis is None:
            return tuple(sizes)
        rows = sizes[self.axis] // self.outer
        return *sizes[: self.axis], self.outer, rows, *sizes[self.axis + 1 :]


FIXED = Dependence(SAME)
OF_THE_BATCH = Dependence(MIXED)
LOST = Dependence(MIXED, counts_padding=True)  # the rows of a sample are unknown

Found = Dependence | tuple[Dependence, ...]  # for all results, or for each
Rule = Callable[[Operation, Sequence[Dependence]], Found]
Rules = Mapping[type[Operation], Rule]


def fixed(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return FIXED


def is_constant_along(value: SSAValue, axis: int) -> bool:
    """Return whether a value is constant along an axis, counted from the last one: -1, -2, …"""
    own = shape_of(type_of(value))
    if -axis > len(own) or own[axis] == 1:
        return True
    match value.owner:
        case FullOp():
            return True
        case ExpandOp() as op:
            return is_constant_along(op.x, axis)
        case ViewOp() as op:
            return len(shape_of(type_of(op.x))) <= 1 and is_constant_along(op.x, -1)
        case ElementwiseOp() as op if "dim" not in op.properties:
            return all(is_constant_along(operand, axis) for operand in op.operands)
        case MmOp() | AddmmOp() as op:
            return axis == -2 and is_constant_along(op.lhs, -2)
        case ConstantOp() as op:
            rows = np.moveaxis(op.array(), axis, 0)
            return bool((rows == rows[:1]).all())
    return False


def linear(one: Dependence) -> Dependence:
    """Rule of an operator that maps zeros to zeros, and other values to other values."""
    return replace(one, padding=0 if one.padding == 0 else None)


def sum_of_samples(*of: Dependence) -> Dependence:
    """Rule of a sum of products; a term is zero if one factor is."""
    over = PART if all(one.over is SAMPLES for one in of) else MIXED
    return Dependence(over, counts_padding=not any(one.is_zero_in_padding for one in of))


def follow_gradient(found: Dependence, grad: Dependence) -> Dependence:
    """Rule of an operator that is linear in its gradient: zero where the gradient is."""
    return replace(found, padding=0) if grad.is_zero_in_padding else found


def combine_dependences(
    samples: Sequence[Dependence], others: Sequence[Dependence], before: int
) -> Dependence:
    """Return the dependence of values that all have samples on the same axis, before axis
    `before`.
    """
    if len({one.sample_axis for one in samples}) > 1:
        return LOST
    mixed = any(one.over is not SAMPLES for one in samples)
    found = by_samples(samples[0], others, before)
    return replace(found, over=MIXED) if mixed else found


def by_samples(one: Dependence, others: Sequence[Dependence], before: int) -> Dependence:
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis >= before or any(other.axis is not None for other in others):
        return LOST
    alone = one.over is SAMPLES and all(other.over is SAME for other in others)
    return Dependence(SAMPLES if alone else MIXED).at(one.sample_axis)
