"""Model, data set and settings of a drawn loop."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.utils.data import Dataset, TensorDataset

SAMPLES, BATCH, WIDTH, CLASSES = 26, 4, 5, 3  # a shorter last batch of two samples


class Settings:
    """A plain object that forward reads, as `args` or `model.config` is."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.table = {"scale": 1.0}
        self.items = [1.0]


SCALE = 1.0  # the global that a forward reads


class Net(nn.Module):
    """A small classifier whose forward takes its scale from one of several places."""

    def __init__(self, model: str, reads: str, settings: Settings) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 6)
        self.norm: nn.Module = nn.BatchNorm1d(6) if model == "batch norm" else nn.Identity()
        self.out = nn.Linear(6, CLASSES)
        self.reads, self.settings, self.calls = reads, settings, 0
        self.own = [1.0]

    def scale(self) -> float:
        match self.reads:
            case "object":
                return self.settings.scale
            case "dict":
                return self.settings.table["scale"]
            case "list":
                return self.settings.items[0]
            case "own list":
                return self.own[0]
            case "global":
                return SCALE
            case "counter":
                self.calls += 1
                return 1.0 + self.calls / 100
            case "random":
                return 1.0 if random.random() < 0.5 else 1.25
        return 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.norm(self.hidden(x)))
        return self.out(h) * self.scale()


class Scaled(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A data set with an attribute that a curriculum changes."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y, self.scale = x, y, 1.0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] * self.scale, self.y[index]


def make_data(kind: str) -> Any:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    y = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return Scaled(x, y) if kind == "scaled" else TensorDataset(x, y)


def held_out_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(10, WIDTH, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (10,), generator=generator))


@dataclass
class Loop:
    """What a running recipe changes."""

    model: nn.Module
    plain: Net  # the module itself, of which `model` may be a wrapper
    optimizer: optim.Optimizer
    data: Any
    settings: Settings
    steps: int = 0
    center: Any = 0.0  # of the outputs so far


def set_scale(loop: Loop, scale: float) -> None:
    """Set every place that a forward may take its scale from."""
    global SCALE
    loop.settings.scale = scale
    loop.settings.table["scale"] = scale
    loop.settings.items[0] = scale
    loop.plain.own[0] = scale
    SCALE = scale
