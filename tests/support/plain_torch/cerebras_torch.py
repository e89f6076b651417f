"""`cerebras_torch` for scripts that are to train in plain PyTorch: its lines change nothing.

If PLAIN_TORCH_NOISE is a number, `module` multiplies each weight by 1 plus or minus the type's
rounding error, with signs drawn from this seed.
"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch


def initialize(**options: Any) -> None:
    Path(options["model_dir"]).mkdir(parents=True, exist_ok=True)


def module(model: torch.nn.Module) -> torch.nn.Module:
    if seed := os.environ.get("PLAIN_TORCH_NOISE"):
        add_rounding(model, torch.Generator().manual_seed(int(seed)))
    return model


@torch.no_grad()
def add_rounding(model: torch.nn.Module, generator: torch.Generator) -> None:
    for weight in model.parameters():
        if weight.is_floating_point():
            signs = torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1
            weight.mul_(1 + signs * torch.finfo(weight.dtype).eps)


def dataloader(loader: Any) -> Any:
    return loader


def Session(*args: Any, **options: Any) -> Any:  # noqa: N802  as the class that it stands for
    return nullcontext()


save, master_print = torch.save, print
