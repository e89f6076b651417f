"""Batch axes of values, and results of minibatches: a handmade row for each operator."""

import numpy as np
import pytest

from csrun import nn
from csrun.cirh.batch_axes import FIXED, LOST, MIXED, OF_THE_BATCH, PART, SAMPLES, Dependence
from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.ctc import CtcLossBackwardOp, CtcLossOp
from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.cirh.ops.fourier import FftR2cOp
from csrun.cirh.ops.grouped_products import GroupedMmOp, GroupedOuterOp
from csrun.cirh.ops.linear_algebra import QrOp, SolveTriangularOp
from csrun.cirh.ops.normalization import FusedRmsNormBackwardOp, FusedRmsNormOp
from csrun.cirh.ops.padding import MaskPaddingOp, ValidSamplesOp
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import (
    ExpandOp,
    PermuteOp,
    SelectBackwardOp,
    SliceBackwardOp,
    TransposeOp,
    ViewOp,
)
from csrun.cirh.ops.sorting import ArgsortOp
from csrun.cirh.types import tensor_type
from csrun.nn.initializers import zeros
from csrun.nn.tensor import Tensor
from csrun.nn.tracer import Tracer

B, T, D = 4, 3, 5


def permuted(x, *dims):
    return x.tracer.emit(PermuteOp, x, dims=dims)


def viewed(x, *shape):
    return x.tracer.emit(ViewOp, x, shape=shape)


def expanded(x, *shape):
    return x.tracer.emit(ExpandOp, x, shape=shape)


def transposed(x):
    return x.tracer.emit(TransposeOp, x)


def weight(x, *shape):
    with x.tracer.layer("w", None):
        return x.tracer.parameter("w", shape, zeros(shape))


def product(a, b):
    return a.tracer.emit(MmOp, a, b)


def masked(x, rows_each=1, value=0.0):
    samples = nn.Tensor(x.tracer, x.tracer.builder.leaf(ValidSamplesOp, tensor_type((), "int64")))
    return x.tracer.emit(MaskPaddingOp, x, samples, dim=0, rows=rows_each, value=value)


def plain_sum(x):
    return x.tracer.emit(SumOp, x, dims=(0,), keepdim=False)


def rows(x):
    return viewed(x, B * T, D)


def result(op, number, *operands, **properties):
    tracer = operands[0].tracer
    values = tracer.builder.emit_all(op, *(o.value for o in operands), **properties)
    return Tensor(tracer, values[number])


def ordered(x, dim):
    return result(ArgsortOp, 0, x, dim=dim, descending=False)


def grouped(x, matrix):
    """Grouped product with one group: rows times a matrix."""
    ends = nn.argmax(weight(x, 3, 1), 0)
    return result(GroupedMmOp, 0, x, viewed(matrix, 1, *matrix.shape), ends)


def grouped_outer(x):
    return result(GroupedOuterOp, 0, permuted(x, 1, 0), x, nn.argmax(weight(x, 3, 1), 0))


def factored(x):
    return result(QrOp, 0, x, complete=False)


def solved(x):
    """Solution of a system with a triangular matrix of weights."""
    size = x.shape[-2]
    factor = viewed(weight(x, size, size), *(1 for _ in x.shape[:-2]), size, size)
    return result(SolveTriangularOp, 0, factor, x, upper=False, unitriangular=False)


def transformed(x, *dims):
    return result(FftR2cOp, 0, x, dims=dims, scale=1.0, onesided=False)


def normalized(number, x, grad=lambda out: out):
    """Result `number` of an RMS norm over the last axis: forward 0, 1, backward 2, 3."""
    gamma = weight(x, x.shape[-1])
    out, rrms = (result(FusedRmsNormOp, i, x, gamma, eps=1e-5) for i in (0, 1))
    back = (result(FusedRmsNormBackwardOp, i, grad(out), x, rrms, gamma) for i in (0, 1))
    return (out, rrms, *back)[number]


def attended(number, x, *mask, query=None, grad=lambda out: out):
    """Result `number` of attention: forward 0, 1, backward 2, 3, 4."""
    x = viewed(x, x.shape[0], 1, *x.shape[1:])
    of = (x if query is None else query(x), x, x)
    options = {"is_causal": False, "scale": 0.5}
    out = [result(AttentionOp, i, *of, *mask, **options) for i in (0, 1)]
    back = [
        result(AttentionBackwardOp, i, grad(out[0]), *of, *out, *mask, **options) for i in range(3)
    ]
    return [*out, *back][number]


def turned(x, dim):
    return nn.rotary_embedding(x, 4, axis=dim)


def looked_up(x):
    ids = viewed(nn.argmax(x), B, T)
    return result(EmbeddingOp, 0, weight(x, 9, 2), ids, padding_idx=-1)


def added_up(x, grad):
    options = {"num_weights": 9, "padding_idx": -1}
    return result(EmbeddingDenseBackwardOp, 0, grad, nn.argmax(x), **options)


def put_back(part, op, **place):
    return result(op, 0, part, input_sizes=(B, T, D), dim=1, **place)


def constant(x, values):
    """Constant float32 tensor [B T, D]."""
    kind = tensor_type((B * T, D), "float32")
    values = ConstantOp.packed(values.astype("float32"))
    return Tensor(x.tracer, x.tracer.builder.leaf(ConstantOp, kind, values=values))


def joined(dim, *tensors):
    return result(CatOp, 0, *tensors, dim=dim)


def aligned(x, lengths=None, grad=False, of=lambda lengths: lengths):
    """CTC loss of T time steps and labels per sample, or its gradient."""
    targets = nn.argmax(x)
    given = of(nn.argmax(nn.sum(x, -1))) if lengths is None else whole(x, lengths)
    operands = permuted(x, 1, 0, 2), targets, given, given
    options = {"blank": 0, "zero_infinity": False}
    loss = result(CtcLossOp, 0, *operands, **options)
    return result(CtcLossBackwardOp, 0, loss, *operands, **options) if grad else loss


def whole(x, values):
    kind, packed = tensor_type((len(values),), "int64"), ConstantOp.packed(np.array(values))
    return Tensor(x.tracer, x.tracer.builder.leaf(ConstantOp, kind, values=packed))


CASES = {
    "labels without times": (aligned, Dependence(SAMPLES, 0)),
    "their gradient": (lambda x: aligned(x, grad=True), Dependence(SAMPLES, 1)),
    "labels without padding": (lambda x: aligned(x, of=masked), Dependence(SAMPLES, 0, padding=0)),
    "their gradient without padding": (
        lambda x: aligned(x, grad=True, of=masked),
        Dependence(SAMPLES, 1, padding=0),
    ),
    "of equal lengths": (lambda x: aligned(x, [3, 3, 3, 3]), Dependence(SAMPLES, 0)),
    "of other lengths": (lambda x: aligned(x, [3, 2, 3, 3]), Dependence(MIXED, 0)),
    "normalized": (lambda x: normalized(0, rows(x)), Dependence(SAMPLES, 0, T)),
    "its statistic": (lambda x: normalized(1, x), Dependence(SAMPLES, 0)),
    "its gradient": (lambda x: normalized(2, x), Dependence(SAMPLES, 0)),
    "its weight's gradient": (lambda x: normalized(3, x), Dependence(PART, counts_padding=True)),
    "its gradient without padding": (
        lambda x: normalized(2, x, masked),
        Dependence(SAMPLES, 0, padding=0),
    ),
    "its weight's without padding": (lambda x: normalized(3, x, masked), Dependence(PART)),
    "its keys' gradient without padding": (
        lambda x: attended(3, x, grad=masked),
        Dependence(SAMPLES, 0, padding=0),
    ),
    "added up by row without padding": (lambda x: added_up(x, masked(x)), Dependence(PART)),
    "normalized over samples": (lambda x: normalized(0, permuted(x, 1, 2, 0)), LOST),
    "attention": (lambda x: attended(0, x), Dependence(SAMPLES, 0)),
    "its row sums": (lambda x: attended(1, x), Dependence(SAMPLES, 0)),
    "its keys' gradient": (lambda x: attended(3, x), Dependence(SAMPLES, 0)),
    "attention under a mask": (lambda x: attended(0, x, weight(x, T, T)), Dependence(SAMPLES, 0)),
    "under a mask for each sample of its own": (
        lambda x: attended(0, x, viewed(nn.sum(x, -1), B, 1, 1, T)),
        Dependence(SAMPLES, 0),
    ),
    "under a mask of the batch's size": (
        lambda x: attended(0, x, weight(x, B, 1, 1, T)),
        LOST,
    ),
    "attention over samples": (lambda x: attended(0, permuted(x, 1, 0, 2)), LOST),
    "attention of mixed queries": (
        lambda x: attended(0, x, query=lambda q: q / nn.sum(q, axis=0)),
        Dependence(MIXED, 0),
    ),
    "turned": (lambda x: turned(x, 1), Dependence(SAMPLES, 0)),
    "turned without padding": (lambda x: turned(masked(x), 1), Dependence(SAMPLES, 0, padding=0)),
    "turned without what padding holds": (
        lambda x: turned(masked(x, value=1), 1),
        Dependence(SAMPLES, 0),
    ),
    "turned along samples": (lambda x: turned(x, 0), LOST),
    "samples as pairs": (lambda x: turned(permuted(x, 1, 2, 0), 0), LOST),
    "looked up": (looked_up, Dependence(SAMPLES, 0)),
    "added up by row": (lambda x: added_up(x, x), Dependence(PART, counts_padding=True)),
    "added up of mixed": (lambda x: added_up(x, x / nn.sum(x, axis=0)), LOST),
    "input": (lambda x: x, Dependence(SAMPLES, 0)),
    "flattened to rows": (rows, Dependence(SAMPLES, 0, T)),
    "and back": (lambda x: viewed(rows(x), B, T, D), Dependence(SAMPLES, 0)),
    "flattened to samples": (nn.flatten, Dependence(SAMPLES, 0)),
    "one number an element": (lambda x: viewed(x, B * T * D), Dependence(SAMPLES, 0, T * D)),
    "behind a new axis": (lambda x: viewed(x, 1, B, T, D), Dependence(SAMPLES, 1)),
    "the samples cut in two": (lambda x: viewed(x, 2, 2, T, D), LOST),
    "permuted": (lambda x: permuted(x, 1, 2, 0), Dependence(SAMPLES, 2)),
    "viewed behind others": (
        lambda x: viewed(permuted(x, 1, 0, 2), T, B * D),
        Dependence(SAMPLES, 1, D),
    ),
    "merged behind others": (
        lambda x: viewed(permuted(x, 1, 0, 2), T * B, D),
        Dependence(SAMPLES, 0, outer=T),
    ),
    "merged behind others, and apart": (
        lambda x: viewed(viewed(permuted(x, 1, 0, 2), T * B * D), T, B * D),
        Dependence(SAMPLES, 1, D),
    ),
    "merged between others": (
        lambda x: viewed(permuted(x, 1, 0, 2), T * B * D),
        Dependence(SAMPLES, 0, D, outer=T),
    ),
    "merged across samples": (lambda x: viewed(permuted(x, 1, 0, 2), B, T * D), LOST),
    "transposed": (lambda x: transposed(rows(x)), Dependence(SAMPLES, 1, T)),
    "expanded": (lambda x: expanded(x, 2, B, T, D), Dependence(SAMPLES, 1)),
    "sum of features": (lambda x: nn.sum(rows(x), -1), Dependence(SAMPLES, 0, T)),
    "sum of rows": (lambda x: nn.sum(x, axis=1), Dependence(SAMPLES, 0)),
    "sum before the samples": (lambda x: nn.sum(permuted(x, 1, 0, 2), 0), Dependence(SAMPLES, 0)),
    "sum that keeps": (
        lambda x: nn.sum(permuted(x, 1, 0, 2), 0, keepdims=True),
        Dependence(SAMPLES, 1),
    ),
    "sum of samples": (lambda x: nn.sum(rows(x), axis=0), Dependence(PART)),
    "of a part": (lambda x: -nn.sum(x, axis=0) * 2.0 / 3.0, Dependence(PART)),
    "not linear in a part": (lambda x: nn.exp(nn.sum(x, axis=0)), OF_THE_BATCH),
    "samples by a part": (lambda x: x / nn.sum(x, axis=0), Dependence(MIXED, 0)),
    "a mixed value's sum": (lambda x: nn.sum(x / nn.sum(x, axis=0), axis=0), Dependence(MIXED)),
    "with itself": (lambda x: nn.relu(rows(x)) + rows(x), Dependence(SAMPLES, 0, T)),
    "with a row": (lambda x: x + weight(x, T, D), Dependence(SAMPLES, 0)),
    "with what the batch is as large as": (
        lambda x: x + weight(x, B, T, D),
        Dependence(MIXED, 0),
    ),
    "with what is alike for all": (
        lambda x: x + expanded(weight(x, T, D), B, T, D),
        Dependence(SAMPLES, 0),
    ),
    "samples on two axes": (
        lambda x: viewed(nn.sum(x, axis=(1, 2)), B, 1) * nn.sum(x, axis=(1, 2)),
        LOST,
    ),
    "weights": (lambda x: nn.exp(weight(x, B, D)), FIXED),
    "rows by weights": (lambda x: product(rows(x), weight(x, D, 2)), Dependence(SAMPLES, 0, T)),
    "weights by columns": (
        lambda x: product(weight(x, 2, D), transposed(rows(x))),
        Dependence(SAMPLES, 1, T),
    ),
    "summed over samples": (
        lambda x: product(transposed(rows(x)), rows(x)),
        Dependence(PART, counts_padding=True),
    ),
    "summed over valid samples": (
        lambda x: product(transposed(rows(x)), -masked(rows(x), T) / 2.0),
        Dependence(PART),
    ),
    "masked": (lambda x: masked(rows(x), T), Dependence(SAMPLES, 0, T, 0.0)),
    "zeros in padding scaled": (lambda x: masked(x) * nn.exp(x), Dependence(SAMPLES, 0, 1, 0)),
    "zeros in padding and others": (lambda x: masked(x) + x, Dependence(SAMPLES, 0)),
    "zeros in padding and a number": (lambda x: masked(x) + 1.0, Dependence(SAMPLES, 0)),
    "a sum of zeros in padding": (lambda x: nn.sum(masked(x), -1), Dependence(SAMPLES, 0, 1, 0)),
    "a sum of ones in padding": (lambda x: nn.sum(masked(x, 1, 1.0), -1), Dependence(SAMPLES, 0)),
    "zeros in padding by weights": (
        lambda x: product(masked(rows(x), T), weight(x, D, 2)),
        Dependence(SAMPLES, 0, T, 0),
    ),
    "the mean over samples": (lambda x: nn.mean(x, axis=(0, 1)), Dependence(PART)),
    "what counts padding": (
        lambda x: nn.exp(x * plain_sum(x)),
        Dependence(MIXED, 0, counts_padding=True),
    ),
    "samples by samples": (lambda x: product(rows(x), transposed(rows(x))), LOST),
    "dense": (nn.Dense(2), Dependence(SAMPLES, 0)),
    "dropout": (lambda x: nn.Dropout(0.5)(rows(x)), Dependence(SAMPLES, 0, T)),
    "dropout of transposed": (
        lambda x: nn.Dropout(0.5)(permuted(x, 1, 2, 0)),
        Dependence(SAMPLES, 2),
    ),
    "dropout of weights": (lambda x: nn.Dropout(0.5)(weight(x, B, D)), FIXED),
    "a slice": (lambda x: masked(x)[:, 1:], Dependence(SAMPLES, 0, padding=0)),
    "a slice of samples": (lambda x: x[1:], LOST),
    "a part of each": (lambda x: permuted(x, 1, 0, 2)[2], Dependence(SAMPLES, 0)),
    "one sample": (lambda x: x[0], LOST),
    "a slice put back": (
        lambda x: put_back(masked(x)[:, 1:], SliceBackwardOp, start=1, end=T, step=1),
        Dependence(SAMPLES, 0, padding=0),
    ),
    "ones put back among zeros": (
        lambda x: put_back(masked(x, 1, 1.0)[:, 1:], SliceBackwardOp, start=1, end=T, step=1),
        Dependence(SAMPLES, 0),
    ),
    "a part put back": (
        lambda x: put_back(masked(x)[:, 1], SelectBackwardOp, index=1),
        Dependence(SAMPLES, 0, padding=0),
    ),
    "beside each other": (lambda x: joined(1, masked(x), masked(x)), Dependence(SAMPLES, 0, 1, 0)),
    "beside what counts": (lambda x: joined(1, masked(x), x), Dependence(SAMPLES, 0)),
    "beside what the batch normalizes": (
        lambda x: joined(1, x, nn.BatchNorm()(x)),
        Dependence(MIXED, 0),
    ),
    "behind each other": (lambda x: joined(0, x, x), LOST),
    "beside what is alike for all": (
        lambda x: joined(1, expanded(weight(x, 2, D), B, 2, D), masked(x)),
        Dependence(SAMPLES, 0),
    ),
    "behind what is alike for all": (
        lambda x: joined(0, expanded(weight(x, T, D), 2, T, D), x),
        LOST,
    ),
    "with a constant of equal rows": (
        lambda x: rows(x) + constant(x, np.arange(B * T * D) % D),
        Dependence(SAMPLES, 0, T),
    ),
    "with a constant of other rows": (
        lambda x: rows(x) + constant(x, np.arange(B * T * D)),
        Dependence(MIXED, 0, T),
    ),
    "summed over samples with what is alike": (
        lambda x: product(transposed(rows(x)), expanded(weight(x, 2), B * T, 2)),
        Dependence(PART, counts_padding=True),
    ),
    "with what is not": (lambda x: product(transposed(rows(x)), weight(x, B * T, 2)), LOST),
    "with products of what is alike": (
        lambda x: rows(x) + product(expanded(weight(x, 2), B * T, 2), weight(x, 2, D)),
        Dependence(SAMPLES, 0, T),
    ),
    "beside what is no sample's": (lambda x: joined(1, x, weight(x, B, T, D)), LOST),
    "products of each sample": (
        lambda x: nn.matmul(x, permuted(masked(x), 0, 2, 1)),
        Dependence(SAMPLES, 0, padding=0),
    ),
    "products with weights": (
        lambda x: nn.matmul(x, expanded(weight(x, D, 2), B, D, 2)),
        Dependence(SAMPLES, 0),
    ),
    "rows by weights, for each head": (
        lambda x: nn.matmul(masked(rows(x), T), weight(x, 2, D, D)),
        Dependence(SAMPLES, 1, T, 0),
    ),
    "products over samples": (
        lambda x: nn.matmul(permuted(x, 1, 2, 0), permuted(x, 1, 0, 2)),
        Dependence(PART, counts_padding=True),
    ),
    "argmax": (lambda x: nn.argmax(rows(x)), Dependence(SAMPLES, 0, T)),
    "argmax before the samples": (
        lambda x: nn.argmax(permuted(x, 1, 0, 2), 0),
        Dependence(SAMPLES, 0),
    ),
    "argmax of samples": (lambda x: nn.argmax(x, 0), LOST),
    "order": (lambda x: ordered(masked(rows(x), T), 1), Dependence(SAMPLES, 0, T)),
    "order of samples": (lambda x: ordered(x, 0), LOST),
    "order of weights": (lambda x: ordered(weight(x, 3), 0), FIXED),
    "groups of rows": (lambda x: grouped(rows(x), weight(x, D, 2)), LOST),
    "groups of weights": (lambda x: grouped(weight(x, 5, D), weight(x, D, 2)), FIXED),
    "products of groups": (lambda x: grouped_outer(rows(x)), LOST),
    "a matrix for each sample": (factored, Dependence(SAMPLES, 0)),
    "samples in a matrix": (lambda x: factored(permuted(x, 1, 0, 2)), LOST),
    "solved for each sample": (
        lambda x: solved(permuted(rows(x), 1, 0)),
        Dependence(SAMPLES, 1, T),
    ),
    "solved for all samples": (lambda x: solved(viewed(x, 1, B * T, D)), LOST),
    "transformed": (lambda x: transformed(x, 1, 2), Dependence(SAMPLES, 0)),
    "transformed over samples": (lambda x: transformed(x, 0), LOST),
}


@pytest.mark.parametrize("name", CASES)
def test_the_dependence_of(name):
    make, expected = CASES[name]
    with Tracer("float64") as tracer:
        x = tracer.input("features", (B, T, D), "float64")
        assert tracer.dependence(make(x)) == expected


def test_of_a_batch_of_one_sample_the_axis_is_kept():
    with Tracer("float64") as tracer:
        x = tracer.input("features", (1, T, D), "float64")
        assert tracer.dependence(nn.flatten(x)) == Dependence(SAMPLES, 0)
        assert tracer.dependence(viewed(x, T, D)) == Dependence(SAMPLES, 0, T)
        behind = viewed(permuted(x, 1, 0, 2), T, 1, D)
        assert tracer.dependence(behind) == Dependence(SAMPLES, 1)
