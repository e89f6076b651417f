"""Extraction of the loss from a model's outputs, and an identity layer."""

import logging
from typing import Any

import torch

log = logging.getLogger("csrun")


def extract_loss(model_outputs: Any) -> Any:
    """Return the loss: the outputs themselves, their first part, or their attribute `loss`.

    Raises: TypeError for other outputs
    """
    if isinstance(model_outputs, torch.Tensor):
        return model_outputs
    if isinstance(model_outputs, list | tuple) and model_outputs:
        return model_outputs[0]
    if hasattr(model_outputs, "loss"):
        return model_outputs.loss
    raise TypeError(f"Invalid outputs type: {type(model_outputs)}.")


class StripPadding(torch.nn.Module):
    """Identity in place of a layer that skips padded positions.

    The result is the same if the model masks padding anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        log.info("StripPadding computes padded positions, too: their results are masked")

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return inputs
