"""Result of a training for a table of runs: steps, last loss, rate."""

from pathlib import Path

import msgspec

from csrun.records import performance
from csrun.records.scalar_events import EventTail, event_files

_LOSS = "loss"
_RATE = "avg_samples_per_sec"
_END_BYTES = 1 << 18  # bytes of an event file, about 400 logged steps


class RunResult(msgspec.Struct, frozen=True):
    """State of a training at its last logged step; None if it has logged none.

    Units: samples_per_sec since the run's load; for an ended run, over all of it
    """

    step: int | None = None
    loss: float | None = None
    samples_per_sec: float | None = None


def result_of(model_dir: Path) -> RunResult:
    """Return the current result of a training in its model_dir."""
    step, values = _newest(model_dir)
    rate = values.get(_RATE)
    ended = performance.read(model_dir)
    if ended is not None and ended.samples_per_sec:
        rate = ended.samples_per_sec
    return RunResult(step, values.get(_LOSS), rate)


def _newest(model_dir: Path) -> tuple[int | None, dict[str, float]]:
    for path in reversed(event_files(model_dir)):
        events = [e for e in EventTail(path, _END_BYTES).read() if e.tag in (_LOSS, _RATE)]
        if losses := [event for event in events if event.tag == _LOSS]:
            step = losses[-1].step
            return step, {event.tag: event.value for event in events if event.step == step}
    return None, {}
