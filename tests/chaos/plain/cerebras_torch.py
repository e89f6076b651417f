"""Stand-in for csrun's front end that leaves a script in plain PyTorch."""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

save, master_print = torch.save, print


def initialize(**unused: Any) -> None:
    pass


def module(wrapped: Any) -> Any:
    return wrapped


dataloader = module


def env() -> SimpleNamespace:
    return SimpleNamespace(is_chief=True)


def Session(*unused: Any, **others: Any) -> AbstractContextManager[SimpleNamespace]:  # noqa: N802
    return nullcontext(SimpleNamespace(is_replayed=False))
