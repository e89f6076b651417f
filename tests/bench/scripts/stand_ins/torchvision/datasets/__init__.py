"""Synthetic data sets: twenty batches of eight in two passes to train, four to test."""

from collections.abc import Callable
from typing import Any

import torch
from bench_recorder import STEPS
from torch.utils.data import Dataset

BATCH_SIZE = 8


class _Images(Dataset):
    shape: tuple[int, ...] = (28, 28)
    classes = 10

    def __init__(
        self, root: str = "", train: bool = True, transform: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(3 + train)
        count = STEPS * BATCH_SIZE // 2 if train else 4 * BATCH_SIZE
        size = (count, *self.shape)
        self.data = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        self.targets = torch.arange(count) % self.classes
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index].to(torch.get_default_dtype()) / 255
        image = image[None] if image.ndim == 2 else image
        return self.transform(image) if self.transform else image, int(self.targets[index])


class MNIST(_Images):
    pass


class FashionMNIST(_Images):
    pass


class CIFAR10(_Images):
    shape = (3, 32, 32)


class STL10(CIFAR10):
    def __init__(self, root: str = "", split: str = "", **options: Any) -> None:
        super().__init__(root, **options)


class ImageFolder(CIFAR10):
    def __init__(self, root: str, transform: Callable[..., Any] | None = None) -> None:
        super().__init__(root, train="val" not in root, transform=transform)


class FakeData(_Images):
    def __init__(
        self, size: int = 0, image_size: tuple[int, ...] = (3, 32, 32), num_classes: int = 10,
        transform: Callable[..., Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.shape = image_size
        super().__init__(transform=transform)


def __getattr__(name: str) -> type:
    """Data sets that timm imports and no script here reads."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Images
