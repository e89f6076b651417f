"""Keras dropout layers recorded as PyTorch dropout with csrun's masks, for any noise shape."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from csrun.keras.recorded_draws import draw_numbers


@contextmanager
def recorded_dropout(sample: torch.Tensor, trains: bool) -> Iterator[None]:
    """Context manager in which seeds of dropout layers have no effect.

    sample: an array of the batch, whose first axis is that of the samples.
    trains: otherwise only layers that are called with training=True drop values, by uniform
        numbers, as the compiler removes masks.
    """
    from keras.src.backend.torch import random
    from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell

    drop: Any = _dropout if trains else partial(_drawn, sample)

    def masks(cell: Any, step_input: Any, dropout_rate: float) -> Any:
        """As DropoutRNNCell._create_dropout_mask, but with ones that depend on the batch."""
        count: int | None = getattr(cell, "dropout_mask_count", None)
        ones = _ones_by_sample(sample, step_input)
        found = [drop(ones, dropout_rate) for _ in range(count or 1)]
        return found[0] if count is None else found

    with (
        patch.object(random, "dropout", drop),
        patch.object(DropoutRNNCell, "_create_dropout_mask", masks),
    ):
        yield


def _dropout(
    inputs: Any, rate: float, noise_shape: Sequence[int | None] | None = None, seed: Any = None
) -> Any:
    if noise_shape is None or tuple(noise_shape) == tuple(inputs.shape):
        return functional.dropout(inputs, rate)
    first = inputs
    for axis, size in enumerate(noise_shape):
        if size == 1:  # the same noise along this axis
            first = first.narrow(axis, 0, 1)
    return inputs * functional.dropout(_ones(first, inputs.dtype), rate)


def _drawn(
    sample: torch.Tensor,
    inputs: Any,
    rate: float,
    noise_shape: Sequence[int | None] | None = None,
    seed: Any = None,
) -> Any:
    pairs = zip(noise_shape or inputs.shape, inputs.shape, strict=True)
    numbers = draw_numbers(sample, [own if size is None else size for size, own in pairs])
    return torch.where(numbers >= rate, inputs / (1 - rate), 0.0)


def _ones_by_sample(sample: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ones that depend on the batch. Shapes: sample, like [B, ...] -> like"""
    rows = _ones(sample.reshape(sample.shape[0], -1)[:, :1], like.dtype)
    return rows.reshape(-1, *(1 for _ in like.shape[1:])) * torch.ones(1, *like.shape[1:])


def _ones(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ones computed from x, so that each sample gets its own mask."""
    return torch.where(torch.eq(x, x), 1.0, 1.0).to(dtype)
