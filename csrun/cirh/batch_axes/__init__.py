"""Batch dependence: the axis that carries samples, and a value's meaning per minibatch.

An axis that carries samples has one or more rows per sample, ordered by sample: after [B, T, D] ->
[B T, D] a sample has T rows of axis 0. Each operator has a rule for the axis of its result; an
operator without a rule computes a value of the batch as a whole.

The padding rows of an incomplete batch must not count: a sum over samples requires that they are
known to be zero.
"""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from csrun.base.families import families_of
from csrun.cirh.batch_axes.base import (
    FIXED,
    LOST,
    MIXED,
    OF_THE_BATCH,
    PART,
    SAME,
    SAMPLES,
    BatchRelation,
    Dependence,
    Found,
    Rules,
    SampleAxis,
)
from csrun.cirh.batch_axes.elementwise import elementwise
from csrun.cirh.ops.base import ElementwiseOp
from csrun.cirh.ops.padding import FirstPartOp, MaskPaddingOp, ShareOp

__all__ = [
    "FIXED",
    "LOST",
    "MIXED",
    "OF_THE_BATCH",
    "PART",
    "SAMPLES",
    "BatchRelation",
    "Dependence",
    "Dependences",
    "SampleAxis",
    "dependence_in",
    "dependence_of",
    "dependences_of",
]

Dependences = dict[SSAValue, Dependence]

_FAMILIES = families_of("csrun.cirh.batch_axes", "RULES")
RULES: Rules = {kind: rule for family in _FAMILIES for kind, rule in family.RULES.items()}


def dependences_of(operations: Sequence[Operation]) -> Dependences:
    """Return the dependence of every value, from the operators in program order."""
    found: Dependences = {}
    for op in operations:
        of = [found[operand] for operand in op.operands]
        found.update(zip(op.results, dependence_of(op, of), strict=True))
    return found


def dependence_in(found: Dependences, value: SSAValue) -> Dependence:
    """Return the dependence of one value, computing those it follows from if needed."""
    pending = [value]
    while pending:
        op = pending[-1].owner
        assert isinstance(op, Operation), "a module's values are results"
        if unknown := [operand for operand in op.operands if operand not in found]:
            pending += unknown
            continue
        of = [found[operand] for operand in op.operands]
        found.update(zip(op.results, dependence_of(op, of), strict=True))
        pending.pop()
    return found[value]


def dependence_of(op: Operation, of: Sequence[Dependence]) -> tuple[Dependence, ...]:
    """Return the dependence of each result of an operator, from those of its operands."""
    found = _dependence_of(op, of)
    each = found if isinstance(found, tuple) else (found,) * len(op.results)
    if any(one.counts_padding for one in of):
        each = tuple(replace(one, counts_padding=True) for one in each)
    return each


def _dependence_of(op: Operation, of: Sequence[Dependence]) -> Found:
    is_same = op.operands and all(one.over is SAME for one in of)
    if is_same and type(op) not in (MaskPaddingOp, ShareOp, FirstPartOp):
        return FIXED
    if rule := RULES.get(type(op)):
        return rule(op, of)
    if isinstance(op, ElementwiseOp):
        return elementwise(op, of)
    return OF_THE_BATCH if all(one.axis is None for one in of) else LOST
