"""Embedding lookups."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    Dependence,
    Rules,
    by_samples,
    combine_dependences,
    follow_gradient,
    sum_of_samples,
)
from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.cirh.types import shape_of, type_of


def lookup(op: Operation, of: Sequence[Dependence]) -> Dependence:
    weight, indices = of
    return by_samples(indices, (weight,), len(shape_of(type_of(op.operands[1]))))


def lookup_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    own = combine_dependences(of, (), len(shape_of(type_of(op.operands[1]))))
    return sum_of_samples(follow_gradient(own, of[0]))


RULES: Rules = {EmbeddingOp: lookup, EmbeddingDenseBackwardOp: lookup_backward}
