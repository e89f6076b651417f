"""Padding: valid rows and padding rows."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    FIXED,
    MIXED,
    OF_THE_BATCH,
    PART,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    fixed,
)
from csrun.cirh.batch_axes.label_sources import source_of_labels
from csrun.cirh.batch_axes.loss import ignores_padding
from csrun.cirh.ops import constant_arrays, learning, model, padding


def of_input(op: Operation, of: Sequence[Dependence]) -> Dependence:
    assert isinstance(op, model.InputOp)
    return Dependence(SAMPLES, 0) if op.from_script is None else FIXED


def mask_padding(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The axis is the operator's: a gradient that is equal for all samples becomes per sample."""
    assert isinstance(op, padding.MaskPaddingOp)
    one, _ = of
    over = SAMPLES if one.over in (SAMPLES, SAME) else MIXED
    return Dependence(over, op.dim.value.data, op.rows.value.data, op.value.value.data)


def label_count(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Known for the global batch if the labels are an input's; else counted, in one minibatch."""
    assert isinstance(op, padding.LabelCountOp)
    (labels,) = of
    over = MIXED if source_of_labels(op.labels) is None else SAME
    return Dependence(over, counts_padding=not ignores_padding(op, labels))


def share(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """A part of a value that is the same in all parts."""
    one, *_ = of
    return Dependence(PART) if one.over is SAME else OF_THE_BATCH


RULES: Rules = {
    model.InputOp: of_input,
    model.ParameterOp: fixed,
    model.StateOp: fixed,
    model.FullOp: fixed,
    learning.LossScaleOp: fixed,
    constant_arrays.ConstantOp: fixed,
    padding.SampleCountOp: fixed,
    padding.ValidSamplesOp: fixed,
    padding.FirstSampleOp: fixed,
    padding.MaskPaddingOp: mask_padding,
    padding.LabelCountOp: label_count,
    padding.ShareOp: share,
    padding.FirstPartOp: share,
}
