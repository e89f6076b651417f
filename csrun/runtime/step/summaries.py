"""Summaries: outputs of a step that go into the event files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csrun.records.events import EventWriter
from csrun.runtime.step.results import StepResult


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
