"""Lookups and cross entropy over shards of a table, and sums of products."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    PART,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    by_samples,
    combine_dependences,
    follow_gradient,
    sum_of_samples,
)
from csrun.cirh.batch_axes.loss import ignores_padding
from csrun.cirh.batch_axes.products import product
from csrun.cirh.ops import vocab_shards
from csrun.cirh.ops.products import AddProductOp
from csrun.cirh.types import shape_of, type_of


def add_product(op: Operation, of: Sequence[Dependence]) -> Dependence:
    before, *factors = of
    found = product(op, factors)
    if before.sample_axis != found.sample_axis:
        return LOST
    return replace(
        found,
        over=found.over if found.over is before.over else MIXED,
        padding=found.padding if found.padding == before.padding == 0 else None,
        counts_padding=found.counts_padding or before.counts_padding,
    )


def lookup(op: Operation, of: Sequence[Dependence]) -> Dependence:
    weight, indices, *_ = of
    return by_samples(indices, (weight,), len(shape_of(type_of(op.operands[1]))))


def lookup_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    own = combine_dependences(of, (), len(shape_of(type_of(op.operands[1]))))
    return sum_of_samples(follow_gradient(own, of[0]))


def of_rows(of: Sequence[Dependence]) -> Dependence:
    """Rule of values that all have samples on the first axis."""
    first = of[0]
    if first.axis != 0 or len({one.sample_axis for one in of}) > 1:
        return LOST
    over = SAMPLES if all(one.over is SAMPLES for one in of) else MIXED
    return Dependence(over).at(first.sample_axis)


def log_sum_exp(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return of_rows(of)


def nll_loss(op: Operation, of: Sequence[Dependence]) -> Dependence:
    found = of_rows(of)
    if found.axis is None:
        return found
    over = PART if found.over is SAMPLES else MIXED
    return Dependence(over, counts_padding=not ignores_padding(op, of[2]))


def nll_loss_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    grad, *rows = of
    found = of_rows(rows)
    if found.axis is None:
        return found
    padding = 0 if ignores_padding(op, rows[2]) else None
    return replace(found, over=found.over if grad.over is SAME else MIXED, padding=padding)


RULES: Rules = {
    AddProductOp: add_product,
    vocab_shards.EmbeddingPartOp: lookup,
    vocab_shards.EmbeddingPartBackwardOp: lookup_backward,
    vocab_shards.LogSumExpPartOp: log_sum_exp,
    vocab_shards.NllLossOfSumsOp: nll_loss,
    vocab_shards.NllLossPartBackwardOp: nll_loss_backward,
}
