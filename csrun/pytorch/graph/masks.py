"""The masks that a compiled step draws, for the interpreter of its recording."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from csrun.cirh.ops.base import ints
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.cirh.types import shape_of, type_of
from csrun.executable import Step
from csrun.executable import random as draws
from csrun.pytorch.capture import Recording
from csrun.pytorch.graph.importing import masks_in


@dataclass(frozen=True)
class Draw:
    """What masks depend on besides their operators: the run's seed, the step, its batch."""

    seed: int = 0
    step: int = 0
    batch: int = 0


def masks_of(recording: Recording, draw: Draw) -> Mapping[int, torch.Tensor]:
    """The mask of each operator that drops, by its number: true where a value is kept."""
    found: dict[int, torch.Tensor] = {}
    for number, value in masks_in(recording).items():
        owner, dims = value.owner, None
        if isinstance(owner, PermuteOp):
            dims = ints(owner.properties, "dims")
            owner = owner.x.owner
        assert isinstance(owner, DropoutMaskOp), "a mask is drawn"
        mask = torch.from_numpy(_drawn(owner, draw))
        found[number] = mask if dims is None else mask.permute(dims)
    return found


def _drawn(op: DropoutMaskOp, draw: Draw) -> npt.NDArray[Any]:
    shape = shape_of(type_of(op.out))
    samples = shape[0] // op.rows_per_sample if op.rows_per_sample else 1
    runs = 1 if op.runs is None else op.runs.value.data
    columns = prod(shape) // samples // runs
    step = Step(index=draw.step, rows=samples, batch=draw.batch)
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
