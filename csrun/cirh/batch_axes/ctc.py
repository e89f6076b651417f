"""Connectionist temporal classification: per sample."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    is_constant_along,
)
from csrun.cirh.ops.ctc import CtcLossBackwardOp, CtcLossOp
from csrun.cirh.types import shape_of, type_of


def loss(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The loss of padding is 0 if its lengths are."""
    _, _, *lengths = of
    padding = 0 if all(one.is_zero_in_padding for one in lengths) else None
    return _by_sample(op, of, 0, padding)


def backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """A zero gradient times an infinite loss's gradient is NaN, except after the end of an
    input.
    """
    input_lengths = of[3]
    return _by_sample(op, of, 1, 0 if input_lengths.is_zero_in_padding else None)


def _by_sample(
    op: Operation, of: Sequence[Dependence], axis: int, padding: float | None
) -> Dependence:
    """Log-probabilities have samples on axis 1, other operands on axis 0, where they may be equal
    for all.
    """
    assert isinstance(op, CtcLossOp | CtcLossBackwardOp)
    given = list(zip(op.operands, of, strict=True))
    others = [one for value, one in given if value is not op.log_probs and one.axis is not None]
    (log_probs,) = (one for value, one in given if value is op.log_probs)
    if log_probs.axis != 1 or any(one.sample_axis != log_probs.on(0).sample_axis for one in others):
        return LOST
    alone = all(
        one.over is SAMPLES
        or (one.over is SAME and is_constant_along(value, -len(shape_of(type_of(value)))))
        for value, one in given
    )
    return Dependence(SAMPLES if alone else MIXED, padding=padding).at(
        log_probs.on(axis).sample_axis
    )


RULES: Rules = {CtcLossOp: loss, CtcLossBackwardOp: backward}
