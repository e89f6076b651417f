"""The host's part of a step: the user's host_call on the step's outputs, merged over steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from csrun.base.errors import CsrunError
from csrun.records.events import EventWriter
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire.messages import Results


@dataclass(frozen=True)
class Mean:
    """A mean kept as total and count, so that parts add up."""

    total: float = 0.0
    count: float = 0

    def __add__(self, other: "Mean") -> "Mean":
        """The mean over both parts."""
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """Total over count; NaN when nothing was counted."""
        return self.total / self.count if self.count else float("nan")


@dataclass
class HostCall:
    """The user's function over named outputs, and the metrics it has given so far.

    A metric is an object with `total` and `count` (as `csrun.nn.metrics` give), or a number, which
    counts once a valid row.
    """

    function: Callable[..., Mapping[str, Any]]
    outputs: tuple[str, ...]
    means: dict[str, Mean] = field(default_factory=dict)

    def take(self, result: StepResult) -> None:
        """Call the function on one step's outputs.

        Raises: CsrunError when it does not return a mapping of metrics.
        """
        metrics = self.function(*(result.outputs[name] for name in self.outputs))
        if not isinstance(metrics, Mapping):
            raise CsrunError(
                "host_call's function must return a mapping of metrics by name, "
                f"got {type(metrics).__name__}"
            )
        for name, metric in metrics.items():
            self.means[name] = self.means.get(name, Mean()) + _mean_of(metric, result.rows)

    def values(self) -> Results:
        """The metrics over all steps taken, and start anew."""
        values = {name: mean.value for name, mean in self.means.items()}
        self.means.clear()
        return values


def _mean_of(metric: Any, rows: int) -> Mean:
    if hasattr(metric, "total") and hasattr(metric, "count"):
        return Mean(float(metric.total), float(metric.count))
    return Mean(float(metric) * rows, rows)


@dataclass(frozen=True)
class Summary:
    """One value to be written: its name in the events, the output that holds it, and how."""

    name: str
    output: str
    is_histogram: bool


def write_summaries(
    summaries: Sequence[Summary], result: StepResult, events: EventWriter, step: int
) -> None:
    """Write the summaries of one step's result at a global step."""
    values = {s.name: np.asarray(result.outputs[s.output]) for s in summaries if not s.is_histogram}
    events.scalars({name: float(value.mean()) for name, value in values.items()}, step)
    for summary in summaries:
        if summary.is_histogram:
            events.histogram(summary.name, result.outputs[summary.output], step)
