"""Storage width of operators' results in mixed precision.

All arithmetic is float32: 16-bit operands are widened exactly, and sums are float32. The table
defines which results are rounded to 16 bits when they are stored.
"""

from collections.abc import Mapping
from enum import Enum

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import (
    attention,
    batch_norm,
    concatenation,
    constant_arrays,
    convolution,
    ctc,
    embedding,
    fourier,
    grouped_products,
    half,
    indexing,
    linear_algebra,
    loss,
    model,
    normalization,
    padding,
    pooling,
    products,
    random,
    reductions,
    shape,
    vocab_shards,
)
from csrun.cirh.ops.base import CirhOp, ElementwiseOp
from csrun.cirh.types import dtype_of, type_of


class Width(Enum):
    """Width of an operator's results in memory."""

    HALF = "16 bits"
    FLOAT32 = "float32"
    KEEPS = "as its operand"  # it moves numbers, which have the width of its operand's


#: Operators that are not elementwise; elementwise ones are HALF, unless listed here.
WIDTHS: Mapping[Width, tuple[type[CirhOp], ...]] = {
    Width.HALF: (
        products.MmOp,
        products.AddmmOp,
        products.MatmulOp,
        grouped_products.GroupedMmOp,
        grouped_products.GroupedOuterOp,
        convolution.ConvolutionOp,
        convolution.ConvolutionBackwardInputOp,
        convolution.ConvolutionBackwardWeightOp,
        attention.AttentionOp,
        attention.AttentionBackwardOp,
        normalization.NativeLayerNormOp,
        normalization.NativeLayerNormBackwardOp,
        normalization.FusedRmsNormOp,
        normalization.FusedRmsNormBackwardOp,
        batch_norm.NativeBatchNormOp,
        batch_norm.NativeBatchNormBackwardOp,
        pooling.AvgPool2dOp,
        pooling.AvgPool2dBackwardOp,
        pooling.MaxPool2dBackwardOp,
        embedding.EmbeddingDenseBackwardOp,
        ctc.CtcLossBackwardOp,
        indexing.GatherBackwardOp,
        indexing.IndexSelectBackwardOp,
        vocab_shards.EmbeddingPartBackwardOp,
        vocab_shards.NllLossPartBackwardOp,
        model.InputOp,
        model.ParameterOp,
    ),
    Width.FLOAT32: (
        loss.LogSoftmaxOp,
        loss.NllLossForwardOp,
        loss.NllLossBackwardOp,
        ctc.CtcLossOp,
        vocab_shards.LogSumExpPartOp,
        vocab_shards.NllLossOfSumsOp,
        reductions.SumOp,
        reductions.AmaxOp,
        reductions.AminOp,
        products.AddProductOp,
        model.StateOp,
        model.FullOp,
        constant_arrays.ConstantOp,
        padding.LabelCountOp,
        padding.ShareOp,
        random.DropoutMaskOp,
        random.UniformOp,
        *linear_algebra.OPS,
        *fourier.OPS,
    ),
    Width.KEEPS: (
        *shape.VIEWS,
        shape.SliceBackwardOp,
        shape.SelectBackwardOp,
        concatenation.CatOp,
        embedding.EmbeddingOp,
        vocab_shards.EmbeddingPartOp,
        indexing.GatherOp,
        indexing.IndexSelectOp,
        pooling.MaxPool2dOp,
        padding.MaskPaddingOp,
        padding.FirstPartOp,
    ),
}
#: Operators with more than one 16-bit result; statistics stay float32.
HALF_RESULTS: Mapping[type[Operation], int] = {attention.AttentionBackwardOp: 3}


_WIDTH_OF: Mapping[type[Operation], Width] = {
    kind: width for width, kinds in WIDTHS.items() for kind in kinds
}


def width_of(op: Operation) -> Width | None:
    """Return the width of an operator's results; None if it has no float results."""
    found = _WIDTH_OF.get(type(op))
    return Width.HALF if found is None and isinstance(op, ElementwiseOp) else found


def is_half(value: SSAValue) -> bool:
    """Return whether all of a value's numbers belong to the 16-bit format.

    Valid after the passes for mixed precision; False if unknown.
    """
    owner = value.owner
    assert isinstance(owner, Operation), "CIRH has no block arguments"
    if isinstance(owner, half.RoundHalfOp | half.WidenHalfOp):
        return True
    if not isinstance(owner, (shape.CloneOp, *WIDTHS[Width.KEEPS])):
        return False
    moved = [each for each in owner.operands if dtype_of(type_of(each)) == "float32"]
    return bool(moved) and all(map(is_half, moved))


def half_results(op: Operation) -> int:
    """Return how many of an operator's first results are stored in 16 bits."""
    return HALF_RESULTS.get(type(op), 1) if width_of(op) is Width.HALF else 0
