"""ResNets of timm by torchvision's names."""

from typing import Any

import torch


def _make(name: str, num_classes: int = 1000) -> torch.nn.Module:
    import timm

    return timm.create_model(name, num_classes=num_classes)


def resnet18(num_classes: int = 1000, **options: Any) -> torch.nn.Module:
    return _make("resnet18", num_classes)


def resnet50(num_classes: int = 1000, **options: Any) -> torch.nn.Module:
    return _make("resnet50", num_classes)
