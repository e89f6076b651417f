"""Batch normalization: everything depends on all samples of the batch, except padding.

By minibatch, samples only depend on others of their minibatch, and gradients of weights and the
next running statistics are sums over minibatches.
"""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    OF_THE_BATCH,
    PART,
    SAMPLES,
    Dependence,
    Found,
    Rules,
    combine_dependences,
)
from csrun.cirh.ops.batch_norm import NativeBatchNormBackwardOp, NativeBatchNormOp


def normalize(op: Operation, of: Sequence[Dependence]) -> Found:
    return _of_rows(op, of[:1])


def backward(op: Operation, of: Sequence[Dependence]) -> Found:
    own, *others = _of_rows(op, of[:2])
    return replace(own, padding=0), *others


def _of_rows(op: Operation, samples: Sequence[Dependence]) -> tuple[Dependence, ...]:
    """The first result has the samples, on axis 0; the others are of the batch.

    Mean and rstd are only read in the backward pass, by the same minibatch.
    """
    found = combine_dependences(samples, (), 1)
    parts = "by_minibatch" in op.properties and found.over is SAMPLES
    over = SAMPLES if parts else MIXED
    own = LOST if found.axis is None else Dependence(over).at(found.sample_axis)
    return own, *(Dependence(PART) if parts else OF_THE_BATCH for _ in op.results[1:])


RULES: Rules = {NativeBatchNormOp: normalize, NativeBatchNormBackwardOp: backward}
