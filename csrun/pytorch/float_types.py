"""Types of a model's floats. The store has one; programs cast weights of the other."""

import logging
from collections.abc import Iterable, Mapping

import torch

from csrun.pytorch.errors import user_line

log = logging.getLogger("csrun")


def text_of(kind: torch.dtype) -> str:
    """Return the name of a type, such as float32."""
    return str(kind).removeprefix("torch.")


def widest(kinds: Iterable[torch.dtype]) -> torch.dtype:
    """Return the type of a store for floats of these types: float64 if one of them is."""
    return torch.float64 if torch.float64 in kinds else torch.float32


def store_type_of(tensors: Mapping[str, torch.Tensor]) -> torch.dtype | None:
    """Return the floating-point type of the store of a model; None if it has no floats.

    Logs if it is not the type of all of them.
    """
    names: dict[torch.dtype, str] = {}
    for name, x in tensors.items():
        if x.is_floating_point():
            names.setdefault(x.dtype, name)
    if not names:
        return None
    if {torch.float32, torch.float64} <= names.keys():
        log.info(
            f"{user_line()}: the model has float32 ({names[torch.float32]}) and float64 "
            f"({names[torch.float64]}): the store has float64 for all weights, twice the memory; "
            "each operator computes in PyTorch's type"
        )
    return widest(names)
