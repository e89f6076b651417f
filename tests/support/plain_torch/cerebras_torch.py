"""`cerebras_torch` for scripts that are to train in plain PyTorch: its lines change nothing."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch


def initialize(**options: Any) -> None:
    Path(options["model_dir"]).mkdir(parents=True, exist_ok=True)


def module(model: torch.nn.Module) -> torch.nn.Module:
    return model


def dataloader(loader: Any) -> Any:
    return loader


def Session(*args: Any, **options: Any) -> Any:  # noqa: N802  as the class that it stands for
    return nullcontext()


save, master_print = torch.save, print
