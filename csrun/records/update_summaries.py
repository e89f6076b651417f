"""Statistics of a training's updates in the events, with the original's names."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]

GRADIENT_FAMILIES = {"kernel": "kernel_grads", "bias": "bias_grads"}  # by a word in a weight's name
_LEAST_POWER = -50  # log2 of a zero in a histogram


@dataclass(frozen=True)
class UpdateSummaries:
    """Keys of the optimizer section; they have no effect without log_summaries."""

    log_summaries: bool = False
    log_grads: bool = False
    log_hists: bool = False
    ws_summary: bool = False

    @property
    def without_effect(self) -> list[tuple[str, str]]:
        """Return the keys that are set without the key that they need, with that key."""
        needed = {"log_grads": "log_summaries", "ws_summary": "log_summaries"}
        needed["log_hists"] = "log_summaries" if self.log_grads else "log_grads"
        return [
            (key, other)
            for key, other in needed.items()
            if getattr(self, key) and not getattr(self, other)
        ]


NO_SUMMARIES = UpdateSummaries()


def family_of(name: str) -> str | None:
    """Return the family of a weight's gradient in the events; None if it has none."""
    return next((family for word, family in GRADIENT_FAMILIES.items() if word in name), None)


def gradient_scalars(
    family: str, name: str, gradient: Floats, smallest_normal: float
) -> dict[str, float]:
    """Return the norm of one gradient, and the shares of zeros and of numbers below the normal
    range.
    """
    magnitude, count = np.abs(gradient), max(gradient.size, 1)
    zeros = np.count_nonzero(magnitude == 0)
    small = np.count_nonzero(magnitude < smallest_normal) - zeros
    return {
        f"sparsity_{family}/{name}": float(zeros / count),
        f"denormal_{family}/{name}": float(small / count),
        f"norm_{family}/{name}": norm_of([gradient]),
    }


def norm_of(tensors: list[Floats]) -> float:
    """Return the global norm of tensors."""
    squares = (np.sum(np.square(tensor, dtype=np.float64)) for tensor in tensors)
    return float(np.sqrt(sum(squares)))


def powers_of(gradient: Floats) -> Floats:
    """Return the log2 of each number's magnitude, at least -50."""
    found: Floats = np.log2(np.abs(gradient) + np.float32(2.0**_LEAST_POWER)).reshape(-1)
    return found
