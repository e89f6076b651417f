"""Pairs of small and large images for super_resolution."""

import torch
from bench_recorder import STEPS
from torch.utils.data import TensorDataset


def get_training_set(upscale_factor: int) -> TensorDataset:
    return _pairs(STEPS * 4, upscale_factor)


def get_test_set(upscale_factor: int) -> TensorDataset:
    return _pairs(16, upscale_factor)


def _pairs(count: int, factor: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    large = torch.rand(count, 1, 16 * factor, 16 * factor, generator=generator)
    return TensorDataset(torch.nn.functional.avg_pool2d(large, factor), large)
