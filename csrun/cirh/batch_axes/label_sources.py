"""Sources of labels."""

from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import arithmetic, model, padding, shape
from csrun.cirh.types import dtype_of, type_of


@dataclass(frozen=True)
class LabelSource:
    """Input whose elements are the labels, each once, in any order, after successive slices."""

    input: model.InputOp
    cuts: tuple[shape.SliceOp | shape.SelectOp, ...]


def source_of_labels(labels: SSAValue) -> LabelSource | None:
    """Return the source of labels; None unless they are one slice of each sample of an input."""
    cuts: list[shape.SliceOp | shape.SelectOp] = []
    while not isinstance(labels.owner, model.InputOp):
        op = labels.owner
        if isinstance(op, shape.SliceOp | shape.SelectOp) and op.dim.value.data > 0:
            cuts.insert(0, op)
        elif cuts or not isinstance(op, _WHOLE) or not _keeps_numbers(op):
            return None
        labels = op.x
    return LabelSource(labels.owner, tuple(cuts))


def _keeps_numbers(op: Operation) -> bool:
    """Return whether integers are preserved."""
    if not isinstance(op, arithmetic.ToCopyOp):
        return True
    before, after = (dtype_of(type_of(value)) for value in (op.x, op.out))
    return np.can_cast(before, after, "same_kind")


_WHOLE = (
    padding.MaskPaddingOp,
    shape.ViewOp,
    shape.PermuteOp,
    shape.TransposeOp,
    shape.CloneOp,
    arithmetic.ToCopyOp,
)
