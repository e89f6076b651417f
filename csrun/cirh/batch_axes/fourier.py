"""Discrete Fourier transforms: samples are on other axes."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    OF_THE_BATCH,
    Dependence,
    Rules,
    combine_dependences,
)
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.fourier import OPS
from csrun.cirh.types import shape_of, type_of


def transformed(op: Operation, of: Sequence[Dependence]) -> Dependence:
    if all(one.axis is None for one in of):
        return OF_THE_BATCH
    if any(one.axis is None or one.axis in ints(op.properties, "dims") for one in of):
        return LOST
    return combine_dependences(of, (), len(shape_of(type_of(op.operands[0]))))


RULES: Rules = dict.fromkeys(OPS, transformed)
