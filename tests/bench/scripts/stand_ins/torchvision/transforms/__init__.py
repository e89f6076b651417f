"""Transforms of tensors that are images already: only Compose and Normalize do what they say."""

from collections.abc import Callable
from typing import Any

import torch

from torchvision.transforms import functional
from torchvision.transforms.functional import InterpolationMode

__all__ = ["Compose", "InterpolationMode", "Normalize", "functional"]


class Compose:
    def __init__(self, transforms: list[Callable[..., Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Normalize(torch.nn.Module):
    def __init__(self, mean: Any, std: Any, **options: Any) -> None:
        super().__init__()
        self.mean, self.std = (torch.as_tensor(x).view(-1, 1, 1) for x in (mean, std))

    def forward(self, image: Any) -> Any:
        return (image - self.mean) / self.std


class _Identity(torch.nn.Module):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()

    def forward(self, image: Any) -> Any:
        return image


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Identity
