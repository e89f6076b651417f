"""Dropout masks of a compiled step, for the interpreter of its recording."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from xdsl.ir import SSAValue

from csrun.cirh.ops.base import ints
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.shape import PermuteOp, ViewOp
from csrun.cirh.types import shape_of, type_of
from csrun.executable import StepState
from csrun.kernels import random as draws
from csrun.pytorch.lower.to_cirh import masks_in
from csrun.pytorch.record.recording import Recording


@dataclass(frozen=True)
class MaskKey:
    """Inputs of the masks besides their operators: the run's seed, the step and its batch."""

    seed: int = 0
    step: int = 0
    batch: int = 0


def masks_of(recording: Recording, draw: MaskKey) -> Mapping[int, torch.Tensor]:
    """Return the mask of each dropout by the operator's number, true where a value is kept."""
    masks = masks_in(recording)
    return {number: torch.from_numpy(_mask_values(mask, draw)) for number, mask in masks.items()}


def _mask_values(mask: SSAValue, draw: MaskKey) -> npt.NDArray[Any]:
    """Return a mask's values, through the views on its draw."""
    match mask.owner:
        case DropoutMaskOp() as op:
            return _draw_mask(op, draw)
        case PermuteOp() as op:
            return _mask_values(op.x, draw).transpose(ints(op.properties, "dims"))
        case ViewOp() as op:
            return _mask_values(op.x, draw).reshape(shape_of(type_of(op.out)))
    raise AssertionError("a mask is drawn")


def _draw_mask(op: DropoutMaskOp, draw: MaskKey) -> npt.NDArray[Any]:
    shape = shape_of(type_of(op.out))
    samples = shape[0] // op.rows_per_sample if op.rows_per_sample else 1
    runs = 1 if op.runs is None else op.runs.value.data
    columns = prod(shape) // samples // runs
    step = StepState(index=draw.step, rows=samples, batch=draw.batch)
    keys = draws.round_keys(draw.seed)
    rate, stream = op.rate.value.data, op.stream.value.data
    words = np.empty((3, 2, runs if runs > 1 else samples, draws.blocks_of(columns)), np.uint64)
    if runs > 1:
        rows = np.empty((runs, columns), bool)
        run = draws.RunDraw(rows, words, rate, stream, keys).of(step)
        return np.stack([run(s, 0, runs).copy() for s in range(samples)]).reshape(shape)
    mask = np.empty((samples, columns), bool)
    kind = draws.MaskDraw if op.rows_per_sample else draws.FixedMaskDraw
    kind(mask, words, draws.threshold_of(rate), stream, keys)(step)
    return mask.reshape(shape)
