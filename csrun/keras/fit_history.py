"""History of a fit, which every task of a job returns: values of each epoch by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from csrun.runtime.wire.messages import Results

PREFIX = "epoch/"  # of the results with an epoch's values: epoch/NUMBER/NAME


@dataclass
class History:
    """Values of a fit, as those of `keras.callbacks.History`.

    epoch: numbers of the epochs, from 0.
    history: values by name, one per epoch that has it.
    global_step: step at the end.
    """

    epoch: list[int] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)
    global_step: int = 0

    @classmethod
    def of(cls, results: Results) -> Self:
        """Return the history in the results of a run."""
        found = cls(global_step=int(results["global_step"]))
        for key, value in results.items():
            if key.startswith(PREFIX):
                number, name = key.removeprefix(PREFIX).split("/", 1)
                if int(number) not in found.epoch:
                    found.epoch.append(int(number))
                found.history.setdefault(name, []).append(value)
        return found


def numbers_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return an epoch's values without those of several numbers."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def results_of(epoch: int, numbers: Mapping[str, float]) -> Results:
    """Return an epoch's numbers as results of a run."""
    return {f"{PREFIX}{epoch}/{name}": value for name, value in numbers.items()}
